"""Rules about a whole job."""

import re
import subprocess
import sys
from typing import Any

import pytest

from muster.admission.validate import problems, remarks
from muster.api.job import TrainingJob
from muster.strategies.registry import STRATEGIES
from muster_contract.large_variables import LONGEST
from tests.support.texts import absent


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


def variables(*env: dict) -> dict:
    return {"trainer": {"task": "digits", "env": list(env)}}


SECRET = {"secretKeyRef": {"name": "keys", "key": "token"}}
WORKER = "spec.roles.worker.template"
CONTAINER = f"{WORKER}.spec.containers[0]"

NAMES = ["Digits_2", "2-digits", "digits-", "digits\n", "--", "", "d" * 45]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_job_must_be_a_valid_name_of_a_service(name: str) -> None:
    [problem] = problems(job({}, name=name))
    assert (problem.field, absent(problem.message, "44", repr(name))) == ("metadata.name", [])


def test_the_longest_name_fits_into_a_host_name():
    assert messages(job({}, name="d" * 44)) == []
    assert len("d" * 44 + "-evaluator-4095") <= 63


def test_a_namespace_must_be_a_label():
    [problem] = problems(job({}, namespace="My_Space"))
    assert (problem.field, absent(problem.message, "63", "'My_Space'")) == ("metadata.namespace", [])


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
    {"trainer": {"script": "train.py", "preload": ["transformers.models.llama", "peft"]}},
    {"trainer": {"module": "my_pkg.model", "preload": ["transformers"]}},
    {"trainer": {"task": "digits", "env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "C", "valueFrom": SECRET}]}},
    {"elastic": {"minReplicas": 1, "maxReplicas": 4}, "batch": {"globalSize": 4}},
    template({"nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "emptyDir": {}}]}, metadata={"labels": {"team": "a"}}),
    container(env=[{"name": "NCCL_DEBUG", "value": "INFO"}], resources={"limits": {"cpu": "500m", "nvidia.com/gpu": 1}}),
]


@pytest.mark.parametrize("spec", ACCEPTED)
def test_a_job_that_can_run_is_accepted(spec):
    assert messages(job(spec)) == []


RULES, PREFERRED = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
TERMS = f"spec.affinity.nodeAffinity.{RULES}.nodeSelectorTerms"

REFUSED = [
    (variables({"name": "RANK", "value": "1"}), "spec.trainer.env[0].name", "Muster does not set, not 'RANK'"),
    (variables({"name": "MUSTER_X", "value": "1"}), "spec.trainer.env[0].name", "not 'MUSTER_X'"),
    (variables({"name": "A"}, {"name": "A"}), "spec.trainer.env[1].name", "write another name"),
    (variables({"name": "A=1"}), "spec.trainer.env[0].name", "must not contain '='"),
    (variables({"name": "A", "value": "1", "valueFrom": SECRET}), "spec.trainer.env[0].valueFrom", "not both"),
    (variables({"name": "A", "valueFrom": {"secretRef": {}}}), "spec.trainer.env[0].valueFrom.secretRef", "secretKeyRef"),
    (template({"terminationGracePeriodSeconds": 5}), f"{WORKER}.spec.terminationGracePeriodSeconds", "gracePeriodSeconds: 5 in its place"),
    ({"strategy": "JAX", "trainer": {"task": "gpt"}}, "spec.trainer.task", "JAX has no task gpt"),
    ({"trainer": {"script": "-c 'pass'"}}, "spec.trainer.script", "write command: [torchrun, -c"),
    ({"managedBy": "muster"}, "spec.managedBy", "muster.dev/operator"),
    (
        {"scheduling": {"queue": "My Queue"}},
        "spec.scheduling.queue",
        "'My Queue'",
    ),
    (
        {"scheduling": {"priorityClassName": "-"}},
        "spec.scheduling.priorityClassName",
        "PriorityClass",
    ),
    ({"trainer": {}}, "spec.trainer", "exactly one of"),
    (
        {"trainer": {"task": "digits", "module": "b", "command": ["c"]}},
        "spec.trainer",
        "exactly one of",
    ),
    (
        {"trainer": {"module": "my-pkg"}},
        "spec.trainer.module",
        "script",
    ),
    ({"trainer": {"script": " "}}, "spec.trainer.script", "train.py"),
    ({"trainer": {"command": [""]}}, "spec.trainer.command[0]", "torchrun"),
    ({"trainer": {"task": "digits", "image": "my image"}}, "spec.trainer.image", "'my image'"),
    (
        {"trainer": {"task": "digits", "code": {"configMap": {"name": "My_Code"}}}},
        "spec.trainer.code.configMap.name",
        "'My_Code'",
    ),
    (
        {"trainer": {"script": "train.py", "input": {"workers": 2}}},
        "spec.trainer.input.workers",
        "remove it",
    ),
    (
        {"trainer": {"command": ["torchrun", "train.py"], "preload": ["peft"]}},
        "spec.trainer.preload",
        "is for script and module; remove it",
    ),
    (
        {"trainer": {"script": "train.py", "preload": ["my-package"]}},
        "spec.trainer.preload",
        "such as transformers.models.llama",
    ),
    (
        {"trainer": {"task": "digits", "supervisor": "Disabled"}},
        "spec.trainer.supervisor",
        "write command",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64}}, "strategy": "JAX"},
        "spec.checkpoint.memory",
        "remove it",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64, "copies": 0}}, "trainer": {"script": "train.py"}},
        "spec.checkpoint.memory",
        "task and module",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64, "copies": 2}}, "roles": {"worker": {"replicas": 2}}},
        "spec.checkpoint.memory.copies",
        "write 1 at most",
    ),
    (
        {"checkpoint": {"memory": {"sizeMib": 64}}, "strategy": "ParameterServer", "roles": {"chief": {}, "ps": {}}},
        "spec.checkpoint.memory",
        "remove it",
    ),
    (
        {"checkpoint": {"storage": {}}},
        "spec.checkpoint.storage",
        "exactly one of",
    ),
    (
        {"checkpoint": {"storage": {"uri": "s3://a", "persistentVolumeClaim": {"claimName": "a"}}}},
        "spec.checkpoint.storage",
        "exactly one of",
    ),
    (
        {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "A"}}}},
        "spec.checkpoint.storage.persistentVolumeClaim.claimName",
        "'A'",
    ),
    (
        {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "a"}, "secretRef": {"name": "keys"}}}},
        "spec.checkpoint.storage.secretRef",
        "leave it out",
    ),
    (
        {"checkpoint": {"storage": {"uri": "s3://a", "secretRef": {"name": "My Keys"}}}},
        "spec.checkpoint.storage.secretRef.name",
        "'My Keys'",
    ),
    (
        {"checkpoint": {"storage": {"uri": "/data"}}},
        "spec.checkpoint.storage.uri",
        "s3://bucket/prefix",
    ),
    (
        {"checkpoint": {"storage": {"uri": "file://data"}}},
        "spec.checkpoint.storage.uri",
        "file:///path",
    ),
    (
        {"checkpoint": {"storage": {"uri": "gs://bucket"}}},
        "spec.checkpoint.storage.uri",
        "'gs://bucket'",
    ),
    (
        {"trainer": {"task": "digits", "config": {"epochs": -1}}},
        "spec.trainer.config.epochs",
        "-1",
    ),
    (
        {"trainer": {"task": "digits", "settings": {"learningRate": 0.0}}},
        "spec.trainer.settings.learningRate",
        "0.0",
    ),
    (
        {"trainer": {"task": "digits", "settings": {"epochs": 3}, "config": {"epochs": 4}}},
        "spec.trainer.settings.epochs",
        "4",
    ),
    (
        {"trainer": {"script": "train.py", "settings": {"epochs": 3}}},
        "spec.trainer.settings",
        "",
    ),
    (
        {"trainer": {"module": "a.b", "config": {"learningRate": "fast", "own": -1}}},
        "spec.trainer.config.learningRate",
        "'fast'",
    ),
    ({"checkpoint": {"resume": "never"}}, "spec.checkpoint.resume", "'never'"),
    (
        {"roles": {"worker": {"replicas": 4096, "processesPerReplica": 64}}},
        "spec.roles",
        "65536",
    ),
    (
        {"elastic": {"minReplicas": 1, "maxReplicas": 8}, "batch": {"globalSize": 4}},
        "spec.batch.globalSize",
        "at least 8",
    ),
    (
        template({"restartPolicy": "Always"}),
        f"{WORKER}.spec.restartPolicy",
        "leave it out",
    ),
    (
        template({"hostname": "a"}),
        f"{WORKER}.spec.hostname",
        "leave it out",
    ),
    (
        template({"subdomain": "a"}),
        f"{WORKER}.spec.subdomain",
        "leave it out",
    ),
    (template({}, kind="Pod"), f"{WORKER}.kind", "write metadata or spec"),
    ({"roles": {"worker": {"template": {"spec": []}}}}, f"{WORKER}.spec", "mapping"),
    (
        {"roles": {"worker": {"template": {"spec": {"terminationGracePeriodSeconds": 10**12}}}}},
        f"{WORKER}.spec.terminationGracePeriodSeconds",
        "604800",
    ),
    (
        template({}, metadata={"name": "a"}),
        f"{WORKER}.metadata.name",
        "labels and annotations",
    ),
    (
        template({}, metadata={"labels": {"muster.dev/role": "ps"}}),
        f"{WORKER}.metadata.labels[muster.dev/role]",
        "muster.dev/",
    ),
    (
        template({}, metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}}),
        f"{WORKER}.metadata.annotations[container.apparmor.security.beta.kubernetes.io/trainer]",
        "securityContext.appArmorProfile",
    ),
    (template({}, metadata={"labels": {"a": 1}}), f"{WORKER}.metadata.labels.a", "quotes"),
    (template({"affinity": "none"}), f"{WORKER}.spec.affinity", "a mapping"),
    (template({"affinity": {"nodeAffinity": ["none"]}}), f"{WORKER}.spec.affinity.nodeAffinity", "a mapping"),
    (template({"affinity": {"podAffinity": {PREFERRED: 1}}}), f"{WORKER}.spec.affinity.podAffinity.{PREFERRED}", "a list"),
    (template({"affinity": {"podAntiAffinity": {PREFERRED: [1]}}}), f"{WORKER}.spec.affinity.podAntiAffinity.{PREFERRED}", "a list"),
    (template({"affinity": {"nodeAffinity": {RULES: {"nodeSelectorTerms": {}}}}}), f"{WORKER}.{TERMS}", "a list"),
    (
        template({"affinity": {"nodeAffinity": {RULES: {"nodeSelectorTerms": [{"matchFields": 1}]}}}}),
        f"{WORKER}.{TERMS}[0].matchFields",
        "a list",
    ),
    (template({"nodeSelector": ["gpu"]}), f"{WORKER}.spec.nodeSelector", "a mapping"),
    (template({"schedulingGroup": "mine"}), f"{WORKER}.spec.schedulingGroup", "a mapping"),
    (template({"priorityClassName": "../../../../api/v1/pods"}), f"{WORKER}.spec.priorityClassName", "'../../../../api/v1/pods'"),
    (template({"priorityClassName": ["high"]}), f"{WORKER}.spec.priorityClassName", "a PriorityClass"),
    (template({"containers": {}}), f"{WORKER}.spec.containers", "a list"),
    (template({"containers": [{}]}), CONTAINER, "mapping with a name"),
    (
        template({"containers": [{"name": "a"}, {"name": "a"}]}),
        f"{WORKER}.spec.containers[1].name",
        "unique",
    ),
    (
        template({"initContainers": [{"name": f"c{n}"} for n in range(17)]}),
        f"{WORKER}.spec.initContainers",
        "at most 16",
    ),
    (template({"containers": [{"name": "A"}]}), f"{CONTAINER}.name", "'A'"),
    (container(image=""), f"{CONTAINER}.image", "''"),
    (container(image=1), f"{CONTAINER}.image", "not 1"),
    (container(command=["x"]), f"{CONTAINER}.command", "spec.trainer.command"),
    (
        container(env=[{"name": "TF_CONFIG", "value": "{}"}]),
        f"{CONTAINER}.env[0].name",
        "'TF_CONFIG'",
    ),
    (
        container(env=[{"name": "PET_NNODES", "value": "1"}]),
        f"{CONTAINER}.env[0].name",
        "'PET_NNODES'",
    ),
    (container(env=[{"name": "A", "value": 1}]), f"{CONTAINER}.env[0].value", "quotes"),
    (container(env=[{"name": "A=B", "value": "1"}]), f"{CONTAINER}.env[0].name", "'A=B'"),
    (container(env=[{"name": f"E{n}"} for n in range(129)]), f"{CONTAINER}.env", "at most 128"),
    (
        container(resources={"limits": {"cpu": 0.5}}),
        f"{CONTAINER}.resources.limits.cpu",
        "quotes",
    ),
    (
        container(resources={"limits": {f"r{n}": 1 for n in range(17)}}),
        f"{CONTAINER}.resources.limits",
        "at most 16",
    ),
    (container(resources={"limits": {"memory": "much"}}), f"{CONTAINER}.resources.limits.memory", "a quantity"),
    (container(resources={"requests": ["cpu"]}), f"{CONTAINER}.resources.requests", "a mapping"),
    (container(resources={"requests": {"memory": "much"}}), f"{CONTAINER}.resources.requests.memory", "a quantity"),
    (container(resources=[]), f"{CONTAINER}.resources", "limits and requests"),
    (container(resources={"limits": []}), f"{CONTAINER}.resources.limits", "nvidia.com/gpu: 1"),
]


@pytest.mark.parametrize(("spec", "field", "fact"), REFUSED)
def test_a_job_that_cannot_run_is_refused_with_field_and_remedy(spec: dict, field: str, fact: str) -> None:
    """`fact` is the wrong value, or what to write instead."""
    [problem] = problems(job(spec))
    assert (problem.field, absent(problem.message, fact)) == (field, [])


def test_a_template_may_lengthen_the_grace_period():
    grace = {"checkpoint": {"gracePeriodSeconds": 30}}
    assert messages(job({**template({"terminationGracePeriodSeconds": 45}), **grace})) == []
    assert len(messages(job({**template({"terminationGracePeriodSeconds": 44}), **grace}))) == 1


def test_settings_of_other_programs_that_resemble_shared_ones_get_a_remark():
    for program in ({"module": "my.model"}, {"script": "train.py"}, {"command": ["x"]}):
        written = job({"trainer": {**program, "config": {"epoch": 3, "layers": 2}}})
        assert problems(written) == []
        [remark] = remarks(written)
        assert (remark.field, absent(remark.message, "did you mean epochs?")) == ("spec.trainer.config.epoch", [])


def test_the_problems_include_those_of_the_strategy():
    [problem] = problems(job({"roles": {"ps": {}}}))
    assert (problem.field, absent(problem.message, "worker")) == ("spec.roles", [])


def large(strategy: str, workers: int, **spec: Any) -> TrainingJob:
    roles = {"worker": {"replicas": workers}, "evaluator": {"replicas": 1}}
    return job({"strategy": strategy, "roles": roles, "batch": {"globalSize": 8192}, **spec}, namespace="team-with-a-long-name")


@pytest.mark.parametrize("strategy", ["MultiWorkerMirrored", "ParameterServer"])
def test_a_command_is_refused_in_a_world_with_too_many_addresses(strategy: str) -> None:
    command = {"trainer": {"command": ["python", "train.py"]}}
    [problem] = problems(large(strategy, 4000, **command))
    assert problem.field == "spec.trainer.command"
    assert "write script" in problem.message
    assert (match := re.search(r"at most (\d+) replicas", problem.message))
    others = len(STRATEGIES[strategy].plan(large(strategy, 1).spec).replicas) - 1
    assert problems(large(strategy, int(match[1]) - others, **command)) == []
    assert problems(large(strategy, int(match[1]) - others + 20, **command)), "the number is not much lower than it must be"


@pytest.mark.parametrize("trainer", [{"task": "digits"}, {"module": "my.model"}, {"script": "train.py"}])
@pytest.mark.parametrize("strategy", ["MultiWorkerMirrored", "ParameterServer"])
def test_a_world_of_any_size_is_accepted_for_programs_that_unpack_its_addresses(strategy: str, trainer: dict[str, str]) -> None:
    assert problems(large(strategy, 4096, trainer=trainer)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits")
def test_the_limit_of_a_variable_equals_the_limit_of_linux() -> None:
    def start(size: int) -> None:
        value = "x" * (size - len("TF_CONFIG=") - 1)
        subprocess.run([sys.executable, "-c", ""], env={"TF_CONFIG": value}, check=True, timeout=60)

    start(LONGEST)
    with pytest.raises(OSError, match="Argument list too long"):
        start(LONGEST + 1)


def test_a_world_of_pytorch_has_no_limit_of_addresses() -> None:
    assert messages(job({"roles": {"worker": {"replicas": 4096}}, "batch": {"globalSize": 8192}}, namespace="n" * 63)) == []


def test_resource_claims_have_different_names_and_one_source():
    def claims(*entries: dict) -> list[str]:
        return messages(job({"roles": {"worker": {"replicas": 2, "resourceClaims": list(entries)}}}))

    path = "spec.roles.worker.resourceClaims"
    shared, own = {"name": "a", "resourceClaimName": "shared"}, {"name": "b", "resourceClaimTemplateName": "h100"}
    assert claims(shared, own) == [], "replicas may share a claim"
    assert claims(shared, {**own, "name": "a"}) == [f"{path}[1].name: must be the only claim of the role called 'a'; give it another name"]
    exactly_one = f"{path}[0].resourceClaimName: write exactly one of resourceClaimName and resourceClaimTemplateName"
    assert claims({"name": "a"})[0] == exactly_one
    assert claims({**shared, "resourceClaimTemplateName": "h100"})[0].startswith(exactly_one)
    [fault] = claims({**own, "name": "My GPUs"})
    assert fault.startswith(f"{path}[0].name: ")


def test_inputs_have_different_names_plain_folders_and_roles_of_the_strategy():
    def inputs(*entries: dict) -> list[str]:
        return messages(job({"inputs": list(entries)}))

    base = {"name": "base", "source": "hf://org/tiny"}
    assert inputs(base, {**base, "name": "other", "roles": ["worker"]}) == []
    [fault] = inputs(base, base)
    assert fault.startswith("spec.inputs[1].name: ")
    [fault] = inputs({**base, "source": "hf://org/tiny/../other"})
    assert absent(fault, "spec.inputs[0].source: ", "plain names") == []
    [fault] = inputs({**base, "source": "hf://datasets/rows"})
    assert absent(fault, "spec.inputs[0].source: ", "hf://") == []
    [fault] = inputs({**base, "roles": ["ps"]})
    assert fault.startswith("spec.inputs[0].roles: ")
