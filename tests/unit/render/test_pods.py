"""Pods and the headless service, written by hand from docs/architecture."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from muster.api.problems import InvalidJobError
from muster.api.spec import CHIEF, EVALUATOR, PS, WORKER, RoleName, TrainingJobSpec
from muster.api.status import Phase, TrainingJobStatus
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults
from muster.render.manifests import plans_of, render_replica
from muster.render.template_hash import template_hash_of
from muster.strategies.registry import strategy_of
from muster_contract.environment import LARGE_VARIABLES
from muster_contract.large_variables import unpack
from muster_contract.options import Loop, MeshOptions, Options, PipelineOptions
from muster_contract.strategy import StrategyRuntime
from muster_contract.trainer_spec import MemorySpec, TrainerSpec
from muster_contract.wire import decode
from tests.support.golden_jobs import CLAIM, IMAGES, JOBS, UID, environment_of, job_of, manifests_of, pods_of, trainer_of

DIGITS = {"task": "digits"}
OWNER = {
    "apiVersion": "muster.dev/v1beta1",
    "kind": "TrainingJob",
    "name": "job",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}


def ddp(**spec: Any) -> dict[str, Any]:
    return {"strategy": "DDP", "trainer": DIGITS, **spec}


def worker(template: dict[str, Any]) -> dict[str, Any]:
    return ddp(roles={"worker": {"template": template}})


def test_the_service_is_headless_and_includes_pods_that_are_not_ready() -> None:
    service = manifests_of(job_of(JOBS["ddp"]))[0]
    assert list(service) == ["apiVersion", "kind", "metadata", "spec"]
    assert (service["kind"], service["metadata"]["name"], service["metadata"]["namespace"]) == ("Service", "job", "ns")
    assert service["metadata"]["ownerReferences"] == [OWNER]
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"muster.dev/job-name": "job", "muster.dev/job-uid": UID},
        "ports": [{"name": "torchrun", "port": 29500, "targetPort": 29500}],
    }


def test_a_pod_has_labels_with_its_job_replica_and_attempt() -> None:
    pod = pods_of(JOBS["parameter-server"])["job-worker-1"]
    assert pod["metadata"]["ownerReferences"] == [OWNER]
    assert pod["metadata"]["labels"] == {
        "muster.dev/job-name": "job",
        "muster.dev/job-uid": UID,
        "muster.dev/role": "worker",
        "muster.dev/index": "1",
        "muster.dev/attempt": "2",
        "muster.dev/template-hash": template_hash_of(job_of(JOBS["parameter-server"]).spec, ()),
        "app.kubernetes.io/name": "muster-training",
        "app.kubernetes.io/instance": "job",
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/managed-by": "muster",
    }


@pytest.mark.parametrize(
    ("spec", "defaults", "alike"),
    [
        ({}, {}, True),
        ({"roles": {"worker": {"replicas": 3}}, "recovery": {"application": {"limit": 9}}}, {}, True),
        ({"suspend": True, "ttlSecondsAfterFinished": 5}, {}, True),
        ({"checkpoint": {"everySteps": 7}}, {}, False),
        ({"checkpoint": {"gracePeriodSeconds": 7}}, {}, False),
        ({"roles": {"worker": {"template": {"metadata": {"labels": {"a": "b"}}}}}}, {}, False),
        ({}, {"metadata": {"labels": {"a": "b"}}}, False),
    ],
)
def test_only_fields_that_change_pods_change_the_template_hash(spec: dict[str, Any], defaults: dict[str, Any], alike: bool) -> None:
    plain = {"strategy": "DDP", "trainer": {"task": "digits"}}
    digest = template_hash_of(TrainingJobSpec.model_validate({**plain, **spec}), (JobDefaults(template=defaults),))
    assert (digest == template_hash_of(TrainingJobSpec.model_validate(plain), ())) is alike


def test_every_address_is_the_host_name_of_a_pod() -> None:
    pods = pods_of(JOBS["parameter-server"])
    names = {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.ns.svc:2222" for pod in pods.values()}
    config = json.loads(environment_of(pods["job-evaluator-0"])["TF_CONFIG"])
    assert {address for members in config["cluster"].values() for address in members} == names


@pytest.mark.parametrize("strategy", ["MultiWorkerMirrored", "ParameterServer"])
def test_the_addresses_of_thousands_of_replicas_fit_into_each_pod(strategy: str) -> None:
    spec = {"strategy": strategy, "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 4096}, "evaluator": {}}}
    job = job_of(spec, name="a-job-with-a-name-of-forty-four-letters-abcd", namespace="n" * 63)
    for role in ("worker", "evaluator"):
        addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
        pod = render_replica(job, role, index=0, attempt=0, addresses=addresses, images=IMAGES)
        environment = environment_of(pod)
        assert "TF_CONFIG" not in environment
        assert len(json.dumps(pod)) < 64 * 1024
        config = json.loads(unpack(environment)["TF_CONFIG"])
        assert config["task"] == {"type": role, "index": 0}
        assert config["cluster"]["worker"] == [f"{addresses.host('worker', index)}:2222" for index in range(4096)]
        assert ("evaluator" in config["cluster"]) is (role == "evaluator")


def test_a_replica_without_a_supervisor_gets_plain_variables() -> None:
    trainer = {"command": ["python", "train.py"], "supervisor": "Disabled"}
    job = job_of({"strategy": "MultiWorkerMirrored", "trainer": trainer, "roles": {"worker": {"replicas": 1500}}})
    pod = render_replica(job, "worker", index=7, attempt=0, addresses=ClusterAddresses("job", "ns"), images=IMAGES)
    environment = environment_of(pod)
    assert len(json.loads(environment["TF_CONFIG"])["cluster"]["worker"]) == 1500
    assert LARGE_VARIABLES not in environment


def test_a_replica_gets_the_variables_of_the_contract() -> None:
    pods = pods_of({**JOBS["ddp"], "roles": {"worker": {"replicas": 2}}})
    environment = environment_of(pods["job-worker-1"])
    trainer = json.loads(environment.pop("MUSTER_TRAINER"))
    assert environment == {
        "MUSTER_JOB": "ns/job",
        "MUSTER_JOB_UID": UID,
        "MUSTER_JOB_CREATED": "2026-11-21T11:16:14Z",
        "MUSTER_STRATEGY": "DDP",
        "MUSTER_ROLE": "worker",
        "MUSTER_INDEX": "1",
        "MUSTER_ATTEMPT": "2",
        "MUSTER_PROCESSES": "1",
        "MUSTER_STATE_DIR": "/run/muster",
        "MUSTER_CHECKPOINT_DIR": "/checkpoints/ns/job",
        "MUSTER_COORDINATOR": "https://muster.muster-system.svc:8443",
        "MUSTER_TOKEN_FILE": "/var/run/secrets/muster/token",
        "MUSTER_COORDINATOR_AUTHORITY": "PEM",
        "MUSTER_WORLD_SIZE": "2",
        "MUSTER_WORLD_ADDRESS": "worker-0.job.ns.svc:29500",
        "MUSTER_FIRST_RANK": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "worker-0.job.ns.svc",
        "PET_MASTER_PORT": "29500",
        "MASTER_ADDR": "worker-0.job.ns.svc",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120",
        "PYTHONUNBUFFERED": "1",
    }
    assert decode(StrategyRuntime, trainer.pop("strategy")) == strategy_of("DDP").runtime
    assert trainer == {
        "task": "digits",
        "config": {"epochs": 5, "seed": 0},
        "batch": {"globalSize": 1024, "accumulationSteps": 1, "learningRateScaling": "Linear"},
        "input": {"shard": "Data"},
        "options": {"loop": "Custom", "gradientCompression": "None"},
        "communication": "Auto",
        "checkpoint": {
            "directory": "/checkpoints/ns/job",
            "resume": "Auto",
            "everySteps": 100,
            "keep": 3,
            "async": True,
        },
        "graceSeconds": 120,
    }
    downward = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in trainer_of(pods["job-worker-0"])["env"] if "valueFrom" in each
    }
    assert downward == {"MUSTER_POD_NAME": "metadata.name", "MUSTER_POD_UID": "metadata.uid"}


@pytest.mark.parametrize(
    ("elastic", "worker", "batch", "most"),
    [
        (None, {"replicas": 4}, {"globalSize": 64}, None),
        ({"minReplicas": 1, "maxReplicas": 8}, {"replicas": 4}, {"globalSize": 64}, 16),
        ({"minReplicas": 1, "maxReplicas": 8}, {"replicas": 3}, {"globalSize": 64, "accumulationSteps": 2}, 11),
        ({"minReplicas": 1, "maxReplicas": 4}, {"replicas": 2, "processesPerReplica": 4}, {"globalSize": 64}, 8),
    ],
)
def test_a_process_of_an_elastic_job_gets_the_largest_number_of_samples(
    elastic: dict[str, int] | None, worker: dict[str, int], batch: dict[str, int], most: int | None
) -> None:
    document = ddp(roles={"worker": worker}, batch=batch) | ({"elastic": elastic} if elastic else {})
    batch_spec = json.loads(environment_of(pods_of(document)["job-worker-0"])["MUSTER_TRAINER"])["batch"]
    assert batch_spec.get("mostAtOnce") == most


def test_only_rank_0_and_the_evaluator_have_a_folder_for_summaries() -> None:
    folders = {name: environment_of(pod).get("MUSTER_TENSORBOARD_DIR") for name, pod in pods_of(JOBS["multi-worker-mirrored"]).items()}
    folder = "/checkpoints/ns/shared/tensorboard"
    assert folders == {"job-worker-0": folder, "job-worker-1": None, "job-evaluator-0": folder}


@pytest.mark.parametrize(
    ("checkpoint", "directory"),
    [
        ({}, None),
        (CLAIM, "/checkpoints/ns/job"),
        ({**CLAIM, "name": "digits"}, "/checkpoints/ns/digits"),
        ({"storage": {"uri": "file:///mnt/my%20runs/"}}, "/mnt/my runs/ns/job"),
        ({"storage": {"uri": "s3://bucket/runs/"}, "name": "digits"}, "s3://bucket/runs/ns/digits"),
    ],
)
def test_a_job_saves_in_its_own_folder(checkpoint: dict[str, Any], directory: str | None) -> None:
    [pod] = pods_of(ddp(checkpoint=checkpoint)).values()
    checkpoint_spec = TrainerSpec.from_json(environment_of(pod)["MUSTER_TRAINER"]).checkpoint
    assert (checkpoint_spec and checkpoint_spec.directory) == directory


def test_credentials_of_the_secret_go_only_into_the_trainer() -> None:
    storage = {"uri": "s3://bucket/runs", "secretRef": {"name": "keys"}}
    [pod] = pods_of(ddp(checkpoint={"storage": storage})).values()
    assert trainer_of(pod)["envFrom"] == [{"secretRef": {"name": "keys"}}]
    [without] = pods_of(ddp(checkpoint=CLAIM)).values()
    assert "envFrom" not in trainer_of(without)


@pytest.mark.parametrize(
    ("cadence", "steps", "seconds"),
    [
        ({}, 100, None),
        ({"everySeconds": 60}, None, 60),
        ({"everySteps": 7, "everySeconds": 60}, 7, 60),
        ({"everySeconds": "Auto"}, None, "Auto"),
        ({"everySteps": 7, "everySeconds": "Continuous"}, 7, "Continuous"),
    ],
)
def test_a_job_saves_every_100_steps_by_default(cadence: dict[str, int | str], steps: int | None, seconds: int | str | None) -> None:
    [pod] = pods_of(ddp(checkpoint={**CLAIM, **cadence})).values()
    checkpoint = TrainerSpec.from_json(environment_of(pod)["MUSTER_TRAINER"]).checkpoint
    assert checkpoint is not None
    assert (checkpoint.every_steps, checkpoint.interval or checkpoint.every_seconds) == (steps, seconds)


def test_the_trainer_gets_the_options_of_the_strategy() -> None:
    options = {
        name: TrainerSpec.from_json(environment_of(next(iter(pods_of(spec).values())))["MUSTER_TRAINER"]).options
        for name, spec in JOBS.items()
    }
    assert options["mirrored"] == Options()
    assert options["central-storage"] == Options(loop=Loop.FIT, logical_devices=2)
    assert options["pipeline"] == Options(pipeline=PipelineOptions(micro_batches=4))
    assert options["fsdp"] == Options(mesh=MeshOptions(data=2, tensor=2))


def test_a_pod_meets_the_restricted_pod_security_standard() -> None:
    for spec in JOBS.values():
        for pod in pods_of({**spec, "roles": {name: {**role, "template": {}} for name, role in spec.get("roles", {}).items()}}).values():
            security = pod["spec"]["securityContext"]
            assert security["runAsNonRoot"] is True
            assert security["runAsUser"] > 0
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            [container] = pod["spec"]["containers"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {next(iter(set(volume) - {"name"})) for volume in pod["spec"]["volumes"]} <= {
                "emptyDir",
                "configMap",
                "persistentVolumeClaim",
                "projected",
                "secret",
            }


def test_a_pod_has_the_settings_and_volumes_for_training() -> None:
    pod = pods_of(JOBS["ddp"])["job-worker-0"]
    spec = pod["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 135
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["priorityClassName"] == "training"
    lost = [each for each in spec["tolerations"] if each["key"].startswith("node.kubernetes.io/")]
    assert [(each["key"], each["tolerationSeconds"]) for each in lost] == [
        ("node.kubernetes.io/not-ready", 30),
        ("node.kubernetes.io/unreachable", 30),
    ]
    volumes = {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in spec["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in trainer_of(pod)["volumeMounts"]}
    token = {"serviceAccountToken": {"audience": "muster", "expirationSeconds": 3600, "path": "token"}}
    assert mounts == {
        "/run/muster": {"emptyDir": {}},
        "/tmp": {"emptyDir": {}},
        "/dev/shm": {"emptyDir": {"medium": "Memory"}},
        "/checkpoints": {"persistentVolumeClaim": {"claimName": "ckpt"}},
        "/var/run/secrets/muster": {"projected": {"sources": [token]}},
    }


def test_the_code_of_the_user_is_mounted_beside_a_writable_directory() -> None:
    [pod] = pods_of(JOBS["central-storage"]).values()
    container, environment = trainer_of(pod), environment_of(pod)
    assert (container["workingDir"], environment["MUSTER_CODE"]) == ("/code", "/run/muster-code")
    assert "PYTHONPATH" not in environment  # it would replace the image's
    assert {"name": "code", "mountPath": "/run/muster-code", "readOnly": True} in container["volumeMounts"]
    assert {"name": "work", "mountPath": "/code"} in container["volumeMounts"]
    volumes = pod["spec"]["volumes"]
    assert {"name": "code", "configMap": {"name": "my-code", "defaultMode": 0o755}} in volumes
    assert {"name": "work", "emptyDir": {}} in volumes


def test_a_command_without_a_supervisor_starts_in_the_folder_of_the_code() -> None:
    trainer = {"command": ["python", "a.py"], "code": {"configMap": {"name": "my-code"}}, "supervisor": "Disabled"}
    [pod] = pods_of(ddp(trainer=trainer)).values()
    assert trainer_of(pod)["workingDir"] == "/code"
    assert {"name": "code", "mountPath": "/code", "readOnly": True} in trainer_of(pod)["volumeMounts"]
    assert not {"MUSTER_CODE", "PYTHONPATH"} & set(environment_of(pod))


def test_the_trainer_container_gets_the_devices_of_resource_claims() -> None:
    claims = [{"name": "gpus", "resourceClaimTemplateName": "h100"}, {"name": "nic", "resourceClaimName": "shared"}]
    roles = {"worker": {"replicas": 2, "resources": {"limits": {"cpu": 1}}, "resourceClaims": claims}}
    for pod in pods_of(ddp(roles=roles, trainer={"task": "digits", "image": "own:1"})).values():
        assert pod["spec"]["resourceClaims"] == claims
        assert trainer_of(pod)["resources"] == {"limits": {"cpu": "1"}, "claims": [{"name": "gpus"}, {"name": "nic"}]}
        assert all("claims" not in each.get("resources", {}) for each in pod["spec"]["initContainers"])


@pytest.mark.parametrize(
    ("cpu", "processes", "threads"),
    [("8", 1, "8"), (8, 4, "2"), ("3", 2, "1"), ("500m", 1, "1"), ("2500m", 1, "2"), ("1e999", 1, "9223372036854775808")],
)
def test_a_process_has_as_many_threads_as_cpus(cpu: str | int, processes: int, threads: str) -> None:
    [pod] = pods_of(ddp(roles={"worker": {"processesPerReplica": processes, "resources": {"limits": {"cpu": cpu}}}})).values()
    assert environment_of(pod)["OMP_NUM_THREADS"] == threads


def test_torchrun_gives_its_workers_the_grace_period_unless_the_job_sets_it() -> None:
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    job = {"trainer": {"command": ["torchrun", "a.py"]}, "checkpoint": {"gracePeriodSeconds": 300}}
    [pod] = pods_of(ddp(**job, roles={"worker": {"replicas": 1}})).values()
    assert environment_of(pod)[name] == "300"
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": name, "value": "40"}]}]}}
    [pod] = pods_of(ddp(**job, roles={"worker": {"replicas": 1, "template": template}})).values()
    assert environment_of(pod)[name] == "40"


SUPERVISOR = ["python", "-P", "-m", "muster_trainer.supervisor"]
COPIED_SUPERVISOR = [
    *("/muster/lib/ld.so", "--inhibit-cache", "--library-path", "/muster/lib", "/muster/bin/python", "-I", "-S"),
    *("-m", "muster_trainer.supervisor"),
]


@pytest.mark.parametrize(
    ("trainer", "command"),
    [
        ({"task": "digits"}, SUPERVISOR),
        ({"script": "train.py"}, SUPERVISOR),
        ({"command": ["torchrun", "a.py"]}, SUPERVISOR),
        ({"image": "mine:1", "task": "digits"}, COPIED_SUPERVISOR),
        ({"image": "mine:1", "module": "my.model"}, COPIED_SUPERVISOR),
        ({"image": "mine:1", "script": "a.py 'b c'"}, COPIED_SUPERVISOR),
        ({"image": "mine:1", "command": ["torchrun", "a.py"]}, COPIED_SUPERVISOR),
        ({"supervisor": "Disabled", "command": ["torchrun", "a.py", "$(RANK)"], "args": ["b c"]}, ["torchrun", "a.py", "$(RANK)", "b c"]),
        ({"image": "mine:1", "supervisor": "Disabled", "command": ["./run"]}, ["./run"]),
    ],
)
def test_a_supervisor_runs_in_any_image_unless_it_is_disabled(trainer: dict[str, Any], command: list[str]) -> None:
    [pod] = pods_of(ddp(trainer=trainer)).values()
    assert trainer_of(pod)["command"] == command
    assert environment_of(pod)["PYTHONUNBUFFERED"] == "1"
    brought = command == COPIED_SUPERVISOR
    assert [each["name"] for each in pod["spec"].get("initContainers", ())] == ["muster-supervisor"] * brought
    assert ("/muster" in {mount["mountPath"] for mount in trainer_of(pod)["volumeMounts"]}) is brought
    assert pod["spec"].get("shareProcessNamespace", False) is (trainer.get("supervisor") == "Disabled")


def test_an_init_container_copies_the_supervisor_for_the_trainer_container() -> None:
    [pod] = pods_of(ddp(trainer={"image": "mine:1", "command": ["a"]})).values()
    [ours] = pod["spec"]["initContainers"]
    assert (ours["image"], ours["command"]) == ("operator:1", ["python", "-P", "-m", "muster_trainer.supervisor.copying", "/muster"])
    assert ours["securityContext"] == trainer_of(pod)["securityContext"]
    assert ours["volumeMounts"] == [{"name": "supervisor", "mountPath": "/muster"}]
    assert {"name": "supervisor", "mountPath": "/muster", "readOnly": True} in trainer_of(pod)["volumeMounts"]
    assert {"name": "supervisor", "emptyDir": {}} in pod["spec"]["volumes"]
    assert "imagePullPolicy" not in ours


SNAPSHOTS = {"checkpoint": {"memory": {"everySteps": 5, "sizeMib": 512}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"requests": {"memory": "512Mi"}}),
        ({"limits": {"memory": "2Gi"}}, {"limits": {"memory": "2560Mi"}}),
        (
            {"limits": {"memory": "3G"}, "requests": {"cpu": 1, "memory": 1000000}},
            {"limits": {"memory": "3374Mi"}, "requests": {"cpu": "1", "memory": "513Mi"}},
        ),
    ],
)
def test_the_memory_for_snapshots_is_added_to_that_of_the_trainer(given: dict[str, Any], expected: dict[str, Any]) -> None:
    pod = pods_of(ddp(**SNAPSHOTS, roles={"worker": {"replicas": 2, "resources": given}}))["job-worker-1"]
    assert pod["spec"]["containers"][0]["resources"] == expected


def test_the_memory_of_a_template_counts_as_well() -> None:
    sizes = [{"name": "trainer", "resources": {"requests": {"memory": "1Gi"}}}]
    pod = pods_of(ddp(**SNAPSHOTS, roles={"worker": {"replicas": 2, "template": {"spec": {"containers": sizes}}}}))["job-worker-0"]
    assert pod["spec"]["containers"][0]["resources"] == {"requests": {"memory": "1536Mi"}}


def test_a_replica_that_keeps_snapshots_knows_its_node() -> None:
    pod = pods_of(ddp(**SNAPSHOTS, roles={"worker": {"replicas": 2}}))["job-worker-0"]
    assert {"name": "MUSTER_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in pod["spec"]["containers"][0]["env"]
    memory = TrainerSpec.from_json(environment_of(pod)["MUSTER_TRAINER"]).memory
    assert memory == MemorySpec(size_mib=512, every_steps=5, copies=1)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"strategy": "FSDP"}, MemorySpec(auto=True), id="a lost process takes a part of the state with it"),
        pytest.param({"strategy": "TensorParallel"}, MemorySpec(auto=True), id="tensor parallel"),
        pytest.param({"strategy": "Pipeline", "options": {"pipeline": {"microBatches": 2}}}, MemorySpec(auto=True), id="pipeline"),
        pytest.param({"strategy": "DDP"}, None, id="each process has the whole state"),
        pytest.param({"strategy": "JAX"}, None, id="not supported"),
        pytest.param(
            {"strategy": "Pipeline", "options": {"pipeline": {"microBatches": 2, "schedule": "PipeDream"}}}, None, id="changes the losses"
        ),
        pytest.param({"strategy": "FSDP", "trainer": {"script": "train.py"}}, None, id="program of the user"),
        pytest.param({"strategy": "FSDP", "checkpoint": {"memory": {"sizeMib": 0}}}, None, id="off"),
        pytest.param({"strategy": "DDP", "checkpoint": {"memory": {"everySteps": 5}}}, MemorySpec(every_steps=5), id="without a size"),
    ],
)
def test_jobs_whose_processes_have_parts_of_the_state_keep_snapshots_by_default(spec: dict[str, Any], expected: MemorySpec | None) -> None:
    pod = pods_of(ddp(**spec, roles={"worker": {"replicas": 2}}))["job-worker-0"]
    assert TrainerSpec.from_json(environment_of(pod)["MUSTER_TRAINER"]).snapshots == expected
    request = {"name": "MUSTER_MEMORY_REQUEST", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory"}}}
    container = pod["spec"]["containers"][0]
    assert (request in container["env"]) == (expected is not None)
    assert "resources" not in container


def test_the_trainer_reads_a_job_without_copies_of_snapshots() -> None:
    pod = pods_of(ddp(checkpoint={"memory": {"copies": 0, "sizeMib": 512}}, roles={"worker": {"replicas": 2}}))["job-worker-0"]
    memory = TrainerSpec.from_json(environment_of(pod)["MUSTER_TRAINER"]).memory
    assert memory == MemorySpec(size_mib=512, copies=0)


def test_the_init_container_has_the_resources_of_the_trainer_without_devices() -> None:
    own = {"image": "mine:1", "command": ["a"]}
    resources = {"limits": {"nvidia.com/gpu": 1, "memory": "4Gi"}, "requests": {"cpu": 2}}
    sizes = [{"name": "trainer", "resources": {"requests": {"cpu": "3"}}}]
    [pod] = pods_of(ddp(trainer=own, roles={"worker": {"resources": resources, "template": {"spec": {"containers": sizes}}}})).values()
    assert pod["spec"]["initContainers"][0]["resources"] == {"limits": {"memory": "4Gi"}, "requests": {"cpu": "3"}}
    [without] = pods_of(ddp(trainer=own)).values()
    assert "resources" not in without["spec"]["initContainers"][0]


def test_arguments_are_added_to_a_script_or_command() -> None:
    def program(**trainer: Any) -> Any:
        [pod] = pods_of(ddp(trainer=trainer)).values()
        trainer_spec = json.loads(environment_of(pod)["MUSTER_TRAINER"])
        return trainer_spec.get("script") or trainer_spec.get("command")

    assert program(script="a.py --x 1", args=["b c", "$(RANK)"]) == "a.py --x 1 'b c' '$(RANK)'"
    assert program(command=["torchrun", "a.py"], args=["b c"]) == ["torchrun", "a.py", "b c"]


def test_programs_get_a_variable_with_the_folder_of_their_checkpoints() -> None:
    [with_claim] = pods_of(ddp(trainer={"script": "a.py"}, checkpoint=CLAIM)).values()
    assert environment_of(with_claim)["MUSTER_CHECKPOINT_DIR"] == "/checkpoints/ns/job"
    [without] = pods_of(ddp(trainer={"script": "a.py"})).values()
    assert "MUSTER_CHECKPOINT_DIR" not in environment_of(without)


def test_the_end_of_the_log_is_the_termination_message_without_a_supervisor() -> None:
    [bare] = pods_of(ddp(trainer={"command": ["torchrun", "a.py"], "supervisor": "Disabled"})).values()
    assert bare["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
    [supervised] = pods_of(ddp()).values()
    assert "terminationMessagePolicy" not in supervised["spec"]["containers"][0]


def test_a_task_cannot_run_without_a_supervisor() -> None:
    with pytest.raises(InvalidJobError, match=r"spec\.trainer\.supervisor: .* supervisor: Auto"):
        pods_of(ddp(trainer={"task": "digits", "supervisor": "Disabled"}))


def test_a_pinned_image_is_used_even_if_the_installation_has_another() -> None:
    job = job_of(ddp()).with_status(TrainingJobStatus(image="pinned:1"))
    assert trainer_of(manifests_of(job)[1])["image"] == "pinned:1"


def test_a_forged_status_does_not_change_the_image_that_a_job_names() -> None:
    job = job_of(ddp(trainer={"task": "digits", "image": "own:1"})).with_status(TrainingJobStatus(image="forged:1"))
    assert trainer_of(manifests_of(job)[1])["image"] == "own:1"


@pytest.mark.parametrize(("given", "seconds"), [(5, 135), (300, 300)])
def test_a_template_does_not_shorten_the_grace_period_of_a_program(given: int, seconds: int) -> None:
    template = {"spec": {"terminationGracePeriodSeconds": given}}
    pod = manifests_of(job_of(ddp(roles={"worker": {"template": template}})))[1]
    assert pod["spec"]["terminationGracePeriodSeconds"] == seconds


@pytest.mark.parametrize(("took", "granted"), [(None, 120), (10, 120), (200, 405)])
def test_pods_get_a_longer_grace_period_if_saves_take_longer(took: float | None, granted: int) -> None:
    checkpoint = {"step": 7, "path": "step-7", "committedAt": "2026-11-21T12:00:00Z", "measuredSeconds": took}
    job = job_of(ddp(checkpoint=CLAIM)).with_status(TrainingJobStatus.from_wire({"checkpoint": checkpoint}))
    pod = manifests_of(job)[1]
    assert pod["spec"]["terminationGracePeriodSeconds"] == granted + 15
    assert json.loads(environment_of(pod)["MUSTER_TRAINER"])["graceSeconds"] == granted


def test_pods_of_a_job_without_a_uid_have_no_owner() -> None:
    [pod] = pods_of(ddp(), uid="").values()
    assert "ownerReferences" not in pod["metadata"]
    assert environment_of(pod)["MUSTER_JOB_UID"]


def test_a_template_cannot_override_reserved_variables_and_side_cars_get_none() -> None:
    containers = [
        {
            "name": "trainer",
            "env": [{"name": "RANK", "value": "9"}, {"name": "PET_EVIL", "value": "1"}, {"name": "PYTHONUNBUFFERED", "value": ""}],
        },
        {"name": "sidecar", "image": "s"},
    ]
    [pod] = pods_of(worker({"spec": {"containers": containers}})).values()
    environment = environment_of(pod)
    assert (environment["RANK"], environment["PYTHONUNBUFFERED"]) == ("0", "")
    assert "PET_EVIL" not in environment
    assert pod["spec"]["containers"][1] == {"name": "sidecar", "image": "s"}


def test_variables_of_the_trainer_reach_all_roles_and_templates_replace_them() -> None:
    def naming(value: str) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "trainer", "env": [{"name": name, "value": value} for name in value]}]}}

    secret = {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "b"}}}
    env = [{"name": "A", "value": "$(RANK)"}, secret, {"name": "OMP_NUM_THREADS", "value": "3"}]
    roles = {"worker": {"template": naming("A")}, "chief": {}, "ps": {}}
    job = job_of({"strategy": "ParameterServer", "trainer": {"task": "digits", "env": env}, "roles": roles})
    addresses, layers = ClusterAddresses("job", "ns"), (JobDefaults(template=naming("ABC")),)
    found = {}
    for role in roles:
        pod = render_replica(job, role, index=0, attempt=0, addresses=addresses, images=IMAGES, defaults=layers)
        found[role] = {each["name"]: each for each in trainer_of(pod)["env"]}
    assert {role: each["A"]["value"] for role, each in found.items()} == {"worker": "A", "chief": "$(RANK)", "ps": "$(RANK)"}
    assert all(each["B"] == secret for each in found.values())
    assert {each["C"]["value"] for each in found.values()} == {"ABC"}
    assert {each["OMP_NUM_THREADS"]["value"] for each in found.values()} == {"3"}


@pytest.mark.parametrize("env", [[{"$patch": "replace"}, {"name": "MINE", "value": "1"}], [{"name": "RANK", "$patch": "delete"}], None])
def test_a_template_cannot_remove_reserved_variables(env: Any) -> None:
    plain = pods_of(ddp())["job-worker-0"]
    [pod] = pods_of(worker({"spec": {"containers": [{"name": "trainer", "env": env}]}})).values()
    reserved = set(environment_of(plain)) - {"PYTHONUNBUFFERED", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}
    assert reserved <= set(environment_of(pod))


def test_a_template_cannot_change_the_identity_of_a_pod() -> None:
    labels = {"muster.dev/attempt": "0", "mine": "1"}
    metadata = {"name": "other", "labels": labels, "ownerReferences": [{"uid": "x"}], "annotations": {"a": "b"}}
    spec = {"hostname": "other", "subdomain": None, "restartPolicy": "Always", "containers": []}
    [pod] = pods_of(worker({"metadata": metadata, "spec": spec})).values()
    assert pod["metadata"]["name"] == "job-worker-0"
    assert pod["metadata"]["labels"].items() >= {"muster.dev/attempt": "2", "mine": "1"}.items()
    assert pod["metadata"]["ownerReferences"] == [OWNER]
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert [pod["spec"][key] for key in ("hostname", "subdomain", "restartPolicy")] == ["worker-0", "job", "Never"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            {"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}},
            "spec.roles.worker.template: takes the trainer container away",
        ),
        ({"spec": {"$patch": "delete"}}, "spec.roles.worker.template: takes the trainer container away"),
        ({"spec": {"containers": None}}, "spec.roles.worker.template: takes the trainer container away"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.roles.worker.template.spec.containers[0]: it has no name"),
        ({"spec": {"containers": "trainer"}}, "spec.roles.worker.template.spec.containers: must be a list"),
        ({"metadata": {"labels": "mine"}}, "spec.roles.worker.template.metadata.labels: must be an object"),
        ({"spec": "mine"}, "spec.roles.worker.template.spec: must be an object"),
    ],
)
def test_a_template_that_cannot_be_merged_is_refused_with_its_field(template: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJobError) as caught:
        pods_of(worker(template))
    assert message in str(caught.value)


def test_one_replica_is_rendered_as_in_the_whole_job() -> None:
    job = job_of(JOBS["rpc"])
    addresses = ClusterAddresses("job", "ns")
    alone = render_replica(job, PS, index=0, attempt=2, addresses=addresses, images=IMAGES)
    together = {pod["metadata"]["name"]: pod for pod in manifests_of(job)}["job-ps-0"]
    assert environment_of(alone).items() <= environment_of(together).items()
    with pytest.raises(LookupError, match="ps-1"):
        render_replica(job, PS, index=1, attempt=2, addresses=addresses, images=IMAGES)


class Loopback:
    """Addresses of one machine: distinct ports in place of names."""

    def host(self, role: RoleName, index: int) -> str:
        return "127.0.0.1"

    def port(self, role: RoleName, index: int, name: str) -> int:
        return 40000 + 100 * (WORKER, PS, CHIEF, EVALUATOR).index(role) + index


def test_replicas_can_share_a_machine_with_different_ports() -> None:
    job = job_of(JOBS["parameter-server"])
    pod = render_replica(job, WORKER, index=1, attempt=0, addresses=Loopback(), images=IMAGES)
    cluster = json.loads(environment_of(pod)["TF_CONFIG"])["cluster"]
    assert cluster == {"chief": ["127.0.0.1:40200"], "worker": ["127.0.0.1:40000", "127.0.0.1:40001"], "ps": ["127.0.0.1:40100"]}
    assert trainer_of(pod)["ports"] == [{"name": "tensorflow", "containerPort": 40001}]


WISHES = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize("own", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {WISHES: ["mine"]}}])
def test_a_pod_prefers_other_nodes_than_the_avoided_ones(own: dict[str, Any] | None) -> None:
    job = job_of(worker({"spec": {"affinity": own}}))
    plain = manifests_of(job)[1]["spec"]
    nodes = [{"name": name, "deaths": 2, "until": "2026-11-21T12:00:00Z"} for name in ("a", "b")]
    spec = manifests_of(job.with_status(TrainingJobStatus.from_wire({"avoidedNodes": nodes})))[1]["spec"]
    wishes = spec["affinity"]["nodeAffinity"][WISHES]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("a", "b")]
    assert wishes[-1] == {"weight": 100, "preference": {"matchFields": fields}}
    assert wishes[:-1] == (["mine"] if own and own.get("nodeAffinity") else [])
    assert {**spec, "affinity": None} == {**plain, "affinity": None}


def test_a_world_is_planned_once_until_the_spec_or_the_world_changes() -> None:
    job = job_of(ddp(roles={"worker": {"replicas": 3}}))
    first = plans_of(job)
    assert plans_of(job.with_status(replace(job.status, phase=Phase.RUNNING))) is first
    larger = job_of(ddp(roles={"worker": {"replicas": 4}}))
    assert [plans_of(larger).world.size, plans_of(job).world.size] == [4, 3]


@pytest.mark.parametrize("own", [None, {"podAffinity": None}, {"podAffinity": {WISHES: ["mine"]}, "nodeAffinity": {WISHES: ["a"]}}])
def test_a_packed_world_prefers_nodes_with_one_value_of_a_label(own: dict[str, Any] | None) -> None:
    roles = {"worker": {"replicas": 2, "template": {"spec": {"affinity": own}}}, "evaluator": {"replicas": 1}}
    spec = {"strategy": "MultiWorkerMirrored", "trainer": {"task": "digits"}, "roles": roles}
    pods = manifests_of(job_of({**spec, "scheduling": {"topology": {"pack": "example.com/rack"}}}))[1:]
    for pod in pods[:2]:
        wishes = pod["spec"]["affinity"]["podAffinity"][WISHES]
        selector = {"matchLabels": {"muster.dev/job-uid": pod["metadata"]["labels"]["muster.dev/job-uid"]}}
        assert wishes[-1] == {"weight": 100, "podAffinityTerm": {"topologyKey": "example.com/rack", "labelSelector": selector}}
        assert wishes[:-1] == (["mine"] if own and own.get("podAffinity") else [])
        assert pod["spec"]["affinity"].get("nodeAffinity") == (own or {}).get("nodeAffinity")
    assert "affinity" not in pods[2]["spec"]
