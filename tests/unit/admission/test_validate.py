"""Rules about a whole job."""

import re
import subprocess
import sys

import pytest

from muster.admission.validate import MAX_VARIABLE, problems
from muster.api.job import TrainingJob
from muster.strategies.registry import STRATEGIES


def job(spec: dict, **metadata: str) -> TrainingJob:
    return TrainingJob.model_validate(
        {"metadata": {"name": "digits", **metadata}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}, **spec}}
    )


def messages(job: TrainingJob) -> list[str]:
    return [str(problem) for problem in problems(job)]


def template(pod: dict, **rest: object) -> dict:
    return {"roles": {"worker": {"template": {"spec": pod, **rest}}}}


def container(**fields: object) -> dict:
    return template({"containers": [{"name": "trainer", **fields}]})


WORKER = "spec.roles.worker.template"
CONTAINER = f"{WORKER}.spec.containers[0]"

NAMES = ["Digits_2", "2-digits", "digits-", "digits\n", "--", "", "d" * 45]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_job_must_be_a_valid_name_of_a_service(name: str) -> None:
    message = "must be at most 44 lower-case letters, digits and '-', beginning with a letter and not ending with '-'"
    assert messages(job({}, name=name)) == [f"metadata.name: {message}, not {name!r}"]


def test_the_longest_name_fits_into_a_host_name():
    assert messages(job({}, name="d" * 44)) == []
    assert len("d" * 44 + "-evaluator-4095") <= 63


def test_a_namespace_must_be_a_label():
    assert messages(job({}, namespace="My_Space")) == [
        "metadata.namespace: must be at most 63 lower-case letters, digits and '-', not 'My_Space'"
    ]


ACCEPTED = [
    {"managedBy": "kueue.x-k8s.io/multikueue"},
    {"checkpoint": {"storage": {"uri": "file:///data/checkpoints"}}},
    {"checkpoint": {"storage": {"uri": "s3://bucket"}}},
    {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}}},
    {"checkpoint": {"resume": "/checkpoints/other/step-00000100-x"}},
    {"checkpoint": {"everySteps": 10, "everySeconds": 60}},
    {"checkpoint": {"everySeconds": "Auto"}},
    {"checkpoint": {"everySeconds": "Continuous"}},
    {"trainer": {"module": "my_pkg.model", "input": {"workers": 0, "prefetch": 1, "shard": "File", "cache": "/dev/shm/samples"}}},
    {"trainer": {"script": "train.py", "config": {"epochs": "many"}}},
    {"trainer": {"command": ["torchrun", "train.py"], "supervisor": "Disabled"}},
    {"elastic": {"minReplicas": 1, "maxReplicas": 4}, "batch": {"globalSize": 4}},
    template({"nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "emptyDir": {}}]}, metadata={"labels": {"team": "a"}}),
    container(env=[{"name": "NCCL_DEBUG", "value": "INFO"}], resources={"limits": {"cpu": "500m", "nvidia.com/gpu": 1}}),
]


@pytest.mark.parametrize("spec", ACCEPTED)
def test_a_job_that_can_run_is_accepted(spec):
    assert messages(job(spec)) == []


REFUSED = [
    ({"managedBy": "muster"}, "spec.managedBy: must be domain/name, such as muster.dev/operator, not 'muster'"),
    (
        {"scheduling": {"queue": "My Queue"}},
        "spec.scheduling.queue: must be the name of a queue: lower-case letters, digits, '-' and '.', not 'My Queue'",
    ),
    (
        {"scheduling": {"priorityClassName": "-"}},
        "spec.scheduling.priorityClassName: must be the name of a PriorityClass: lower-case letters, digits, '-' and '.', not '-'",
    ),
    ({"trainer": {}}, "spec.trainer: needs exactly one of task, module, script and command"),
    (
        {"trainer": {"task": "a", "module": "b", "command": ["c"]}},
        "spec.trainer: needs exactly one of task, module, script and command",
    ),
    (
        {"trainer": {"module": "my-pkg"}},
        "spec.trainer.module: must be a Python module, such as my_pkg.model; a file goes into script, not 'my-pkg'",
    ),
    ({"trainer": {"script": " "}}, "spec.trainer.script: must name a Python program, such as train.py"),
    ({"trainer": {"command": [""]}}, "spec.trainer.command[0]: must name a program, such as torchrun"),
    ({"trainer": {"task": "a", "image": "my image"}}, "spec.trainer.image: must be the name of an image, without spaces, not 'my image'"),
    (
        {"trainer": {"task": "a", "code": {"configMap": {"name": "My_Code"}}}},
        "spec.trainer.code.configMap.name: must be the name of a ConfigMap, not 'My_Code'",
    ),
    (
        {"trainer": {"script": "train.py", "input": {"workers": 2}}},
        "spec.trainer.input.workers: is for task and module, and other programs read by themselves; remove it",
    ),
    (
        {"trainer": {"task": "a", "supervisor": "Disabled"}},
        "spec.trainer.supervisor: Disabled starts nothing but a command: write command, or supervisor: Auto",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64}}, "strategy": "JAX"},
        "spec.checkpoint.memory: only DDP, FSDP, TensorParallel and Pipeline keep snapshots in memory; remove it",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64, "copies": 0}}, "trainer": {"script": "train.py"}},
        "spec.checkpoint.memory: is for task and module, because other programs save by themselves; remove it",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64, "copies": 2}}, "roles": {"worker": {"replicas": 2}}},
        "spec.checkpoint.memory.copies: 2 copies on other replicas need 3 replicas, and the job may have 2; write 1 at most",
    ),
    (
        {"checkpoint": {"storage": {}}},
        "spec.checkpoint.storage: needs exactly one of persistentVolumeClaim and uri",
    ),
    (
        {"checkpoint": {"storage": {"uri": "s3://a", "persistentVolumeClaim": {"claimName": "a"}}}},
        "spec.checkpoint.storage: needs exactly one of persistentVolumeClaim and uri",
    ),
    (
        {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "A"}}}},
        "spec.checkpoint.storage.persistentVolumeClaim.claimName: must be the name of a PersistentVolumeClaim, not 'A'",
    ),
    (
        {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "a"}, "secretRef": {"name": "keys"}}}},
        "spec.checkpoint.storage.secretRef: is for a uri, such as s3://bucket/prefix: leave it out",
    ),
    (
        {"checkpoint": {"storage": {"uri": "s3://a", "secretRef": {"name": "My Keys"}}}},
        "spec.checkpoint.storage.secretRef.name: must be the name of a Secret, not 'My Keys'",
    ),
    (
        {"checkpoint": {"storage": {"uri": "/data"}}},
        "spec.checkpoint.storage.uri: must be file:///path, with three slashes, or s3://bucket/prefix, not '/data'",
    ),
    (
        {"checkpoint": {"storage": {"uri": "file://data"}}},
        "spec.checkpoint.storage.uri: must be file:///path, with three slashes, or s3://bucket/prefix, not 'file://data'",
    ),
    (
        {"checkpoint": {"storage": {"uri": "gs://bucket"}}},
        "spec.checkpoint.storage.uri: must be file:///path, with three slashes, or s3://bucket/prefix, not 'gs://bucket'",
    ),
    (
        {"trainer": {"task": "digits", "config": {"epochs": -1}}},
        "spec.trainer.config.epochs: a whole number of at least 1 is needed, found -1",
    ),
    (
        {"trainer": {"module": "a.b", "config": {"learningRate": "fast", "own": -1}}},
        "spec.trainer.config.learningRate: a number above 0 is needed, found 'fast'",
    ),
    ({"checkpoint": {"resume": "never"}}, "spec.checkpoint.resume: must be Auto, Never or the path of a checkpoint, not 'never'"),
    (
        {"roles": {"worker": {"replicas": 4096, "processesPerReplica": 64}}},
        "spec.roles: make a world of 262144 processes; at most 65536 are possible",
    ),
    (
        {"elastic": {"minReplicas": 1, "maxReplicas": 8}, "batch": {"globalSize": 4}},
        "spec.batch.globalSize: 4 samples cannot be shared out over 8 devices, which the job may grow to: write at least 8, "
        "or a smaller elastic.maxReplicas",
    ),
    (
        template({"restartPolicy": "Always"}),
        f"{WORKER}.spec.restartPolicy: may not be set: Muster decides when a pod is replaced; leave it out",
    ),
    (
        template({"hostname": "a"}),
        f"{WORKER}.spec.hostname: may not be set: Muster names the pods, so that they find each other; leave it out",
    ),
    (
        template({"subdomain": "a"}),
        f"{WORKER}.spec.subdomain: may not be set: Muster names the pods, so that they find each other; leave it out",
    ),
    (template({}, kind="Pod"), f"{WORKER}.kind: is no field of a pod template: it has metadata and spec"),
    ({"roles": {"worker": {"template": {"spec": []}}}}, f"{WORKER}.spec: must be a mapping: the spec of a pod"),
    (
        {"roles": {"worker": {"template": {"spec": {"terminationGracePeriodSeconds": 10**12}}}}},
        f"{WORKER}.spec.terminationGracePeriodSeconds: must be a whole number of seconds from 0 to 604800, a week",
    ),
    (
        template({}, metadata={"name": "a"}),
        f"{WORKER}.metadata.name: may not be set: a template has labels and annotations; the rest is Muster's",
    ),
    (
        template({}, metadata={"labels": {"muster.dev/role": "ps"}}),
        f"{WORKER}.metadata.labels[muster.dev/role]: may not be set: names that begin with muster.dev/ are Muster's",
    ),
    (template({}, metadata={"labels": {"a": 1}}), f"{WORKER}.metadata.labels.a: must be text: put it in quotes"),
    (template({"containers": {}}), f"{WORKER}.spec.containers: must be a list of mappings, each with a name"),
    (template({"containers": [{}]}), f"{CONTAINER}: must be a mapping with a name, because items are merged by name"),
    (
        template({"containers": [{"name": "a"}, {"name": "a"}]}),
        f"{WORKER}.spec.containers[1].name: is not unique; a is the name of an earlier entry, too",
    ),
    (
        template({"initContainers": [{"name": f"c{n}"} for n in range(17)]}),
        f"{WORKER}.spec.initContainers: must have at most 16 entries, not 17",
    ),
    (template({"containers": [{"name": "A"}]}), f"{CONTAINER}.name: must be at most 63 lower-case letters, digits and '-', not 'A'"),
    (container(image=""), f"{CONTAINER}.image: must be the name of an image, without spaces, not ''"),
    (container(image=1), f"{CONTAINER}.image: must be the name of an image, without spaces, not 1"),
    (container(command=["x"]), f"{CONTAINER}.command: may not be set for the trainer: write spec.trainer.command"),
    (
        container(env=[{"name": "TF_CONFIG", "value": "{}"}]),
        f"{CONTAINER}.env[0].name: must be the name of a variable that Muster does not set, not 'TF_CONFIG'",
    ),
    (
        container(env=[{"name": "PET_NNODES", "value": "1"}]),
        f"{CONTAINER}.env[0].name: must be the name of a variable that Muster does not set, not 'PET_NNODES'",
    ),
    (container(env=[{"name": "A", "value": 1}]), f"{CONTAINER}.env[0].value: must be text: put it in quotes"),
    (container(env=[{"name": "A=B", "value": "1"}]), f"{CONTAINER}.env[0].name: must have no '=', and 'A=B' has one"),
    (container(env=[{"name": f"E{n}"} for n in range(129)]), f"{CONTAINER}.env: must have at most 128 entries, not 129"),
    (
        container(resources={"limits": {"cpu": 0.5}}),
        f"{CONTAINER}.resources.limits.cpu: must be a whole number or text, such as 4, 500m or 16Gi: put it in quotes",
    ),
    (
        container(resources={"limits": {f"r{n}": 1 for n in range(17)}}),
        f"{CONTAINER}.resources.limits: must have at most 16 entries, not 17",
    ),
    (container(resources=[]), f"{CONTAINER}.resources: must be a mapping with limits and requests"),
    (container(resources={"limits": []}), f"{CONTAINER}.resources.limits: must be a mapping, such as {{nvidia.com/gpu: 1}}"),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_a_job_that_cannot_run_is_refused_with_field_and_remedy(spec, message):
    assert messages(job(spec)) == [message]


def test_the_problems_include_those_of_the_strategy():
    assert messages(job({"roles": {"ps": {}}})) == ["spec.roles: only worker with this strategy; remove all other roles"]


@pytest.mark.parametrize("strategy", ["MultiWorkerMirrored", "ParameterServer"])
def test_a_world_with_too_many_addresses_is_refused_with_the_largest_number(strategy: str) -> None:
    def sized(workers: int) -> TrainingJob:
        spec = {
            "strategy": strategy,
            "roles": {"worker": {"replicas": workers}, "evaluator": {"replicas": 1}},
            "batch": {"globalSize": 8192},
        }
        return job(spec, namespace="team-with-a-long-name")

    [message] = messages(sized(4000))
    match = re.fullmatch(
        r"spec\.roles: TF_CONFIG has the address of each replica, and \d+ of them take (\d+) bytes: "
        r"Linux allows 131072 in a variable; write at most (\d+) replicas in all",
        message,
    )
    assert match, message
    assert int(match[1]) > 131_072
    others = len(STRATEGIES[sized(1).spec.strategy].plan(sized(1).spec).replicas) - 1
    assert messages(sized(int(match[2]) - others)) == []
    assert messages(sized(int(match[2]) - others + 20)) != [], "the number is not much lower than it must be"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits")
def test_the_limit_of_a_variable_equals_the_limit_of_linux() -> None:
    def start(size: int) -> None:
        value = "x" * (size - len("TF_CONFIG=") - 1)
        subprocess.run([sys.executable, "-c", ""], env={"TF_CONFIG": value}, check=True, timeout=60)

    start(MAX_VARIABLE)
    with pytest.raises(OSError, match="Argument list too long"):
        start(MAX_VARIABLE + 1)


def test_a_world_of_pytorch_has_no_limit_of_addresses() -> None:
    assert messages(job({"roles": {"worker": {"replicas": 4096}}, "batch": {"globalSize": 8192}}, namespace="n" * 63)) == []


def test_inputs_have_different_names_plain_folders_and_roles_of_the_strategy():
    def inputs(*entries: dict) -> list[str]:
        return messages(job({"inputs": list(entries)}))

    base = {"name": "base", "source": "hf://org/tiny"}
    assert inputs(base, {**base, "name": "other", "roles": ["worker"]}) == []
    assert inputs(base, base) == ["spec.inputs[1].name: must be the only input called 'base'; give it another name"]
    [fault] = inputs({**base, "source": "hf://org/tiny/../other"})
    assert fault.startswith("spec.inputs[0].source: must have plain names of folders")
    [fault] = inputs({**base, "source": "hf://datasets/rows"})
    assert fault.startswith("spec.inputs[0].source: must be hf://")
    [fault] = inputs({**base, "roles": ["ps"]})
    assert fault.startswith("spec.inputs[0].roles: ")
