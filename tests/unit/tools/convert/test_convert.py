"""The jobs of other tools as TrainingJobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from muster.cli.main import cli
from muster.tools.convert.documents import convert, written
from muster.tools.convert.job import Conversion, ConvertError

STORAGE = "spec.checkpoint: add storage (a claim or a bucket): without it the job starts over after most failures"


def pod(image: str = "me/train:1", **container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "pytorch", "image": image, **container}]}}


def kubeflow(kind: str, replicas: dict[str, Any], **spec: Any) -> dict[str, Any]:
    key = {"PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs", "MPIJob": "mpiReplicaSpecs"}[kind]
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "a"}, "spec": {key: replicas, **spec}}


def group(replicas: int = 1, **container: Any) -> dict[str, Any]:
    return {"replicas": replicas, "template": pod(**container)}


def one(*documents: dict[str, Any]) -> Conversion:
    [result] = convert(yaml.safe_dump_all(documents))
    return result


def notes(result: Conversion) -> list[str]:
    return [str(note) for note in result.notes if str(note) != STORAGE]


PLAIN = {"command": ["python3", "-u", "train.py", "-u", "--lr=0.1"]}
TORCHRUN = {"command": ["torchrun", "--nproc_per_node=2", "--max-restarts", "7", "train.py"], "args": ["--epochs", "3"]}


@pytest.mark.parametrize(
    ("document", "spec"),
    [
        pytest.param(
            kubeflow("PyTorchJob", {"Master": group(**PLAIN), "Worker": group(3, **PLAIN)}),
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:1", "script": "train.py", "args": ["-u", "--lr=0.1"]},
                "roles": {"worker": {"replicas": 4}},
            },
            id="master and workers are one role",
        ),
        pytest.param(
            kubeflow("PyTorchJob", {"Worker": group(2, **TORCHRUN)}, runPolicy={"backoffLimit": 9, "cleanPodPolicy": "All"}),
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:1", "script": "train.py", "args": ["--epochs", "3"]},
                "recovery": {"application": {"limit": 9}},
                "roles": {"worker": {"replicas": 2, "processesPerReplica": 2}},
                "cleanPodPolicy": "All",
            },
            id="torchrun and a run policy",
        ),
        pytest.param(
            kubeflow(
                "PyTorchJob", {"Worker": group(2, resources={"limits": {"nvidia.com/gpu": 8}}, env=[{"name": "A", "value": "1"}], **PLAIN)}
            ),
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:1", "script": "train.py", "args": ["-u", "--lr=0.1"]},
                "roles": {
                    "worker": {
                        "replicas": 2,
                        "resources": {"limits": {"nvidia.com/gpu": 8}},
                        "template": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]}},
                        "processesPerReplica": 1,
                    }
                },
            },
            id="accelerators and variables",
        ),
        pytest.param(
            kubeflow(
                "TFJob", {"Chief": group(command=["/run"]), "Worker": group(2, command=["/run"]), "Evaluator": group(command=["/run"])}
            ),
            {
                "strategy": "MultiWorkerMirrored",
                "trainer": {"image": "me/train:1", "command": ["/run"]},
                "roles": {"worker": {"replicas": 3}, "evaluator": {"replicas": 1}},
            },
            id="a chief is worker-0",
        ),
        pytest.param(
            kubeflow("TFJob", {"PS": group(2, **PLAIN), "Worker": group(4, **PLAIN)}),
            {
                "strategy": "ParameterServer",
                "trainer": {"image": "me/train:1", "script": "train.py", "args": ["-u", "--lr=0.1"]},
                "roles": {"chief": {"replicas": 1}, "worker": {"replicas": 3}, "ps": {"replicas": 2}},
            },
            id="parameter servers",
        ),
        pytest.param(
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "metadata": {"name": "a", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
                "spec": {
                    "runtimeRef": {"name": "torch-distributed"},
                    "trainer": {"image": "me/train:2", "numNodes": 2, "numProcPerNode": 4, "command": ["torchrun", "train.py"]},
                    "initializer": {"dataset": {"storageUri": "hf://me/data", "secretRef": {"name": "hub"}}},
                },
            },
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:2", "script": "train.py"},
                "roles": {"worker": {"replicas": 2, "processesPerReplica": 4}},
                "inputs": [{"name": "dataset", "source": "hf://datasets/me/data", "secretRef": {"name": "hub"}}],
                "scheduling": {"queue": "team"},
            },
            id="a TrainJob with inputs and a queue",
        ),
        pytest.param(
            {
                "apiVersion": "sagemaker.amazonaws.com/v1",
                "kind": "HyperPodPyTorchJob",
                "metadata": {"name": "a"},
                "spec": {
                    "nprocPerNode": "8",
                    "replicaSpecs": [{"name": "pods", "replicas": 4, "template": pod(**TORCHRUN)}],
                    "runPolicy": {"jobMaxRetryCount": 5},
                },
            },
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:1", "script": "train.py", "args": ["--epochs", "3"]},
                "recovery": {"application": {"limit": 5}},
                "roles": {"worker": {"replicas": 4, "processesPerReplica": 2}},
            },
            id="HyperPod",
        ),
        pytest.param(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "a"},
                "spec": {
                    "parallelism": 2,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "template": pod(command=["sh", "-c", "torchrun x.py"]),
                },
            },
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:1", "command": ["sh", "-c", "torchrun x.py"]},
                "roles": {"worker": {"replicas": 2}},
                "recovery": {"application": {"limit": 0}},
            },
            id="a Job with a shell",
        ),
        pytest.param(
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "a"},
                "spec": {
                    "failurePolicy": {"maxRestarts": 3},
                    "replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": pod(**PLAIN)}}}],
                },
            },
            {
                "strategy": "DDP",
                "trainer": {"image": "me/train:1", "script": "train.py", "args": ["-u", "--lr=0.1"]},
                "roles": {"worker": {"replicas": 4}},
                "recovery": {"application": {"limit": 3}},
            },
            id="a JobSet",
        ),
        pytest.param(
            {
                "name": "a",
                "num_nodes": 2,
                "resources": {"accelerators": {"H100": 8}, "memory": "64+"},
                "run": "torchrun --nproc-per-node 8 t.py",
            },
            {
                "strategy": "DDP",
                "trainer": {"script": "t.py"},
                "roles": {
                    "worker": {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}, "processesPerReplica": 8}
                },
            },
            id="a task of SkyPilot",
        ),
    ],
)
def test_a_job_of_another_tool_becomes_a_valid_training_job(document: dict[str, Any], spec: dict[str, Any]) -> None:
    result = one(document)
    assert result.spec == spec
    assert result.document()["metadata"]["name"] == "a"
    assert not [note for note in notes(result) if note.startswith("correct")]
    assert yaml.safe_load(written([result])) == result.document()


def test_a_ray_job_becomes_a_job_whose_head_runs_the_entrypoint() -> None:
    def ray_group(name: str, **fields: Any) -> dict[str, Any]:
        return {
            "template": {"spec": {"containers": [{"name": name, "image": "me/ray:1", "ports": [{"containerPort": 1, "name": "client"}]}]}},
            **fields,
        }

    environment = "pip: [torch]\nenv_vars: {A: '1'}\n"
    cluster = {
        "headGroupSpec": ray_group("ray-head", rayStartParams={"dashboard-host": "0.0.0.0", "num-cpus": "0"}),
        "workerGroupSpecs": [ray_group("ray-worker", replicas=2, minReplicas=1, maxReplicas=5), ray_group("ray-worker", replicas=1)],
    }
    spec = {"entrypoint": "python train.py --lr 1", "runtimeEnvYAML": environment, "rayClusterSpec": cluster, "backoffLimit": 2}
    result = one({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "a"}, "spec": spec})
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]}}
    assert result.spec == {
        "strategy": "Ray",
        "trainer": {
            "image": "me/ray:1",
            "script": "train.py",
            "args": ["--lr", "1"],
            "config": {"rayStartParams": {"head": {"num-cpus": "0"}}},
        },
        "roles": {"head": {"replicas": 1, "template": template}, "worker": {"replicas": 3, "template": template}},
        "recovery": {"application": {"limit": 2}},
    }
    assert [note.split(":")[0] for note in notes(result)] == ["spec.roles.worker.replicas", "spec.runtimeEnvYAML.pip", "spec.trainer"]


def spark_application(**fields: Any) -> dict[str, Any]:
    spec = {
        "type": "Python",
        "mode": "cluster",
        "image": "me/spark:1",
        "mainApplicationFile": "local:///opt/train.py",
        "driver": {"cores": 1, "memory": "2g", "serviceAccount": "spark"},
        "executor": {"instances": 3, "cores": 2, "memory": "4g"},
        **fields,
    }
    return {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": {"name": "a"}, "spec": spec}


def test_a_spark_application_becomes_a_driver_and_executors() -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "other", "emptyDir": {}}]
    mount = {"name": "data", "mountPath": "/data"}
    document = spark_application(
        arguments=["--lr", 1],
        sparkConf={"spark.sql.shuffle.partitions": "8", "spark.kubernetes.authenticate.driver.serviceAccountName": "spark"},
        executor={"instances": 3, "cores": 2, "memory": "4g", "volumeMounts": [mount], "gpu": {"name": "nvidia.com/gpu", "quantity": 1}},
        volumes=volumes,
        restartPolicy={"type": "OnFailure", "onFailureRetries": 2, "onFailureRetryInterval": 10},
        deps={"packages": ["org.example:x:1"]},
        dynamicAllocation={"enabled": True},
        timeToLiveSeconds=60,
    )
    result = one(document)
    assert result.spec == {
        "strategy": "Spark",
        "trainer": {
            "image": "me/spark:1",
            "script": "/opt/train.py",
            "args": ["--lr", "1"],
            "config": {"sparkConf": {"spark.sql.shuffle.partitions": "8"}},
        },
        "roles": {
            "driver": {"replicas": 1, "resources": {"limits": {"cpu": 1, "memory": "3380Mi"}}},
            "executor": {
                "replicas": 3,
                "resources": {"limits": {"cpu": 2, "memory": "6247Mi", "nvidia.com/gpu": 1}},
                "template": {"spec": {"volumes": volumes[:1], "containers": [{"name": "trainer", "volumeMounts": [mount]}]}},
            },
        },
        "recovery": {"application": {"limit": 2}},
        "ttlSecondsAfterFinished": 60,
    }
    assert [note.split(": ")[0] for note in notes(result)] == [
        "spec.sparkConf.spark.kubernetes.authenticate.driver.serviceAccountName",
        "spec.deps.packages",
        "spec.roles.executor.replicas",
        "spec.trainer",
    ]


def test_properties_of_all_instances_of_a_spark_application_are_kept() -> None:
    name = "spark.metrics.conf.*.sink.prometheusServlet.class"
    settings = {name: "org.apache.spark.metrics.sink.PrometheusServlet"}
    assert one(spark_application(sparkConf=settings)).spec["trainer"]["config"]["sparkConf"] == settings


def test_the_heap_of_a_converted_executor_is_that_of_the_spark_application() -> None:
    result = one(spark_application(executor={"memory": "4g", "memoryOverhead": "1g"}))
    assert result.spec["roles"]["executor"]["resources"]["limits"]["memory"] == "5632Mi"
    assert result.spec["trainer"]["config"]["sparkConf"] == {"spark.executor.memory": "4096m"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "Scala"}, "spec.type: is Scala"),
        ({"mainApplicationFile": "s3a://bucket/train.py"}, "spec.mainApplicationFile: is 's3a://bucket/train.py'; put"),
        ({"mainApplicationFile": "local:///a.jar"}, "write local:///its/path.py"),
        ({"driver": {"memory": "much"}}, "spec.driver.memory: 'much' is no amount of memory"),
    ],
)
def test_a_spark_application_that_is_no_python_program_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=re.escape(message)):
        one(spark_application(**fields))


def test_an_mpi_job_becomes_a_launcher_and_workers_without_mpirun() -> None:
    command = ["mpirun", "--allow-run-as-root", "-np", "4", "-x", "A=1", "-mca", "btl", "^openib", "python", "t.py", "-np"]
    replicas = {"Launcher": group(command=command), "Worker": group(2)}
    result = one(kubeflow("MPIJob", replicas, slotsPerWorker=2, runPolicy={"backoffLimit": 0}))
    variables = [{"name": "A", "value": "1"}, {"name": "OMPI_MCA_btl", "value": "^openib"}]
    template = {"spec": {"containers": [{"name": "trainer", "env": variables}]}}
    assert result.spec == {
        "strategy": "MPI",
        "trainer": {"image": "me/train:1", "script": "t.py", "args": ["-np"]},
        "roles": {
            "launcher": {"replicas": 1, "template": template},
            "worker": {"replicas": 2, "processesPerReplica": 2, "template": template},
        },
        "recovery": {"application": {"limit": 0}},
    }
    assert [note.split(":")[0] for note in notes(result)] == ["spec.trainer"]


def test_a_launcher_that_is_a_worker_too_has_slots() -> None:
    replicas = {"Launcher": group(command=["mpirun", "-np", "4", "/run"]), "Worker": group(2)}
    result = one(kubeflow("MPIJob", replicas, slotsPerWorker=2, runLauncherAsWorker=True))
    assert result.spec["roles"]["launcher"] == {"replicas": 1, "processesPerReplica": 2}
    assert "spec.roles: have 6 slots, and the job ran mpirun with -np 4" in notes(result)


def test_the_example_is_converted_as_the_docs_say() -> None:
    [result] = convert((Path(__file__).parents[4] / "examples/other-tools/pytorchjob.yaml").read_text())
    assert result.spec["roles"]["worker"]["replicas"] == 4
    assert not [note for note in notes(result) if note.startswith("correct")]


def test_a_batch_script_of_slurm_becomes_a_job() -> None:
    script = """#!/bin/bash
#SBATCH --job-name=Big_GPT
#SBATCH -N 4
#SBATCH --gres=gpu:h100:8
#SBATCH --time=1-02:30
#SBATCH --partition=long
module load cuda
srun -n 4 --cpu-bind none --label torchrun --nnodes 4 --nproc_per_node 8 \\
  --rdzv_endpoint $MASTER:29500 train.py --nodes $SLURM_NNODES
"""
    [result] = convert(script)
    assert (result.name, result.spec["trainer"]) == ("big-gpt", {"script": "train.py", "args": ["--nodes", "$SLURM_NNODES"]})
    assert result.spec["roles"]["worker"] == {"replicas": 4, "processesPerReplica": 8, "resources": {"limits": {"nvidia.com/gpu": 8}}}
    assert result.spec["activeDeadlineSeconds"] == 26 * 3600 + 30 * 60
    said = "\n".join(notes(result))
    assert "module load cuda" in said
    assert "SLURM_NNODES" in said
    assert "partition" in said


@pytest.mark.parametrize(
    ("limit", "seconds"), [("90", 5400), ("1:30", 90), ("2:00:05", 7205), ("2-0", 172800), ("0-1:1", 3660), ("soon", None)]
)
def test_a_time_limit_of_slurm_becomes_seconds(limit: str, seconds: int | None) -> None:
    [result] = convert(f"#!/bin/sh\n#SBATCH --time={limit}\nsrun python train.py\n")
    assert result.spec.get("activeDeadlineSeconds") == seconds


def test_the_file_says_what_changes_above_the_job() -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 3, "metrics": []}
    workers = {"Master": group(image="me/other:1", **PLAIN), "Worker": group(2)}
    document = kubeflow("PyTorchJob", workers, elasticPolicy=elastic, runPolicy={"managedBy": "x", "new": 1})
    assert notes(one(document)) == [
        "spec.trainer.command: write the program of the image in place of ENTRYPOINT; the file does not name it",
        "pytorchReplicaSpecs.Master: differs from Worker in command, image; the job has those of Worker for both",
        "spec.roles.worker.replicas: is fixed; for elastic: {minReplicas: 1, maxReplicas: 3}, "
        "write batch.globalSize too, the samples of a step",
        "spec.elasticPolicy.metrics: has no counterpart, and is left out",
        "spec.runPolicy.new: has no counterpart, and is left out",
    ]
    text = written(convert(yaml.safe_dump(document)))
    assert text.startswith("# Converted from PyTorchJob a.\n# - spec.trainer.command: write")


def test_the_first_notes_name_what_the_result_lacks() -> None:
    long = {**kubeflow("PyTorchJob", {"Worker": group(2, **PLAIN)}), "metadata": {"name": "a" * 70}}
    assert notes(one(long))[0].startswith("correct before you apply it: metadata.name: ")


def test_a_runtime_behind_a_train_job_gives_it_its_image_and_pods() -> None:
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "mine"},
        "spec": {
            "mlPolicy": {"numNodes": 3, "torch": {"numProcPerNode": "auto"}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {"spec": {"template": {"spec": {"containers": [{"name": "node", "image": "me/base:1"}]}}}},
                        }
                    ]
                }
            },
        },
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "a"},
        "spec": {"runtimeRef": {"name": "mine"}, "trainer": {"command": ["python", "t.py"]}},
    }
    result = one(job, runtime)
    assert (result.spec["trainer"], result.spec["roles"]) == ({"image": "me/base:1", "script": "t.py"}, {"worker": {"replicas": 3}})
    assert notes(result) == []
    assert "the file does not have the runtime mine" in notes(one(job))[0]


def test_several_jobs_are_converted_and_other_documents_are_named() -> None:
    job = kubeflow("PyTorchJob", {"Worker": group(2, **PLAIN)})
    claim = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}}
    results = convert(yaml.safe_dump_all([job, claim, {**job, "metadata": {"name": "b"}}]))
    assert [each.name for each in results] == ["a", "b"]
    assert "ConfigMap files: is not converted; apply it as it is" in notes(results[0])
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(written(results))] == ["a", "b"]


TF = "kind: TFJob\napiVersion: kubeflow.org/v1\n"
TORCH = "kind: PyTorchJob\napiVersion: kubeflow.org/v1\n"
REFUSED = {
    "": "the file has nothing, and no job to convert",
    "3": "document 1: holds no job",
    "a: [": "document 1, line 2: is not YAML",
    "kind: {{ .Values.kind }}": "the file is a Helm template: print the result with helm template",
    "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1": "print the result with kubectl kustomize",
    "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: x}": "the file has Deployment x, and no job to convert",
    "kind: TrainingJob\napiVersion: muster.dev/v1beta1": "it is a TrainingJob already",
    TORCH + "spec: 3": "spec: must be a mapping, and is int",
    TORCH + "spec: {}": "spec.pytorchReplicaSpecs: is required",
    TORCH + "spec: {pytorchReplicaSpecs: {PS: {}}}": "pytorchReplicaSpecs.PS: is not a replica type",
    TORCH + "spec: {pytorchReplicaSpecs: {Worker: {replicas: many}}}": "Worker.replicas: must be a whole",
    TF + "spec: {tfReplicaSpecs: {Worker: {template: {spec: {containers: 3}}}}}": "containers: must be a list",
    "kind: Job\napiVersion: batch/v1\nspec: {parallelism: 2, completions: 50}": "50 pods, of which 2 run at once, are independent",
    "kind: JobSet\napiVersion: jobset.x-k8s.io/v1alpha2\nspec: {replicatedJobs: [{name: a}, {name: b}]}": "the file has 2 (a, b)",
    "#!/bin/sh\n#SBATCH -N 2\necho hello": "the script has 0 lines that start with srun or torchrun",
    "#!/bin/sh\n#SBATCH -N 2\nsrun python a.py\nsrun python b.py": "the script has 2 lines",
    "#!/bin/sh\n#SBATCH -N 2\nsrun python 'a.py": "cannot be split into words",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_that_cannot_be_converted_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as refused:
        convert(text)
    assert REFUSED[text] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_command_prints_the_job_or_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(kubeflow("PyTorchJob", {"Worker": group(2, **PLAIN)})))
    done = CliRunner().invoke(cli, ["convert", str(path)])
    assert (done.exit_code, yaml.safe_load(done.stdout)["spec"]["strategy"]) == (0, "DDP")
    path.write_bytes(b"\xff\xfe")
    failed = CliRunner().invoke(cli, ["convert", str(path)])
    assert str(failed.exception) == f"{path}: is not text in UTF-8"
