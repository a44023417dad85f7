"""The jobs that the policy of an installation refuses and accepts."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.job_policy import UNLIMITED, JobPolicy, violations
from muster.api.spec import TrainingJobSpec

GOOD = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}


def policy(**limits: Any) -> JobPolicy:
    return JobPolicy.model_validate(limits)


def spec(**changes: Any) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate({**GOOD, **changes})


def pod(**fields: Any) -> dict[str, Any]:
    return {"roles": {"worker": {"replicas": 2, "template": {"spec": fields}}}}


def trainer(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "trainer", **fields}])


POD = "spec.roles.worker.template.spec"
ENV = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a service account": (
        {"serviceAccounts": ["train", "tune"]},
        pod(serviceAccountName="powerful"),
        f"{POD}.serviceAccountName",
        "train or tune",
    ),
    "its old name": ({"serviceAccounts": ["train"]}, pod(serviceAccount="powerful"), f"{POD}.serviceAccount", "train"),
    "every service account": ({"serviceAccounts": []}, pod(serviceAccountName="a"), f"{POD}.serviceAccountName", "leave it out"),
    "a token of the default one": (
        {"serviceAccounts": ["train"]},
        pod(automountServiceAccountToken=True),
        f"{POD}.automountServiceAccountToken",
        "train",
    ),
    "a token of the default one in a volume": (
        {"serviceAccounts": ["train"]},
        pod(volumes=[{"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        f"{POD}.volumes[0].projected.sources[0].serviceAccountToken",
        "train",
    ),
    "device-hours without a limit": ({"maxDeviceHoursPerJob": 10}, {}, "spec.usageLimits.deviceHours", "write at most that"),
    "too many device-hours": (
        {"maxDeviceHoursPerJob": 10.5},
        {"usageLimits": {"deviceHours": 11}},
        "spec.usageLimits.deviceHours",
        "at most 10.5, as this installation allows, not 11",
    ),
    "a priority class": (
        {"priorityClasses": ["low"]},
        {"scheduling": {"priorityClassName": "vip"}},
        "spec.scheduling.priorityClassName",
        "low",
    ),
    "one of a template": ({"priorityClasses": ["low"]}, pod(priorityClassName="vip"), f"{POD}.priorityClassName", "low"),
    "the Secret of an input": (
        {"volumes": ["emptyDir"]},
        {"inputs": [{"name": "base", "source": "hf://org/tiny", "secretRef": {"name": "hub"}}]},
        "spec.inputs[0].secretRef",
        "emptyDir",
    ),
    "a volume": (
        {"volumes": ["emptyDir", "persistentVolumeClaim"]},
        pod(volumes=[{"name": "a", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/"}}]),
        f"{POD}.volumes[1].hostPath",
        "emptyDir or persistentVolumeClaim",
    ),
    "a volume that no version of Kubernetes knows yet": (
        {"volumes": ["emptyDir"]},
        pod(volumes=[{"name": "x", "new": {}}]),
        f"{POD}.volumes[0].new",
        "emptyDir",
    ),
    "a source of a projected volume": (
        {"volumes": ["emptyDir"]},
        pod(volumes=[{"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        f"{POD}.volumes[0].projected.sources[0].serviceAccountToken",
        "emptyDir",
    ),
    "a claim for checkpoints": (
        {"volumes": ["emptyDir"]},
        {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "c"}}}},
        "spec.checkpoint.storage.persistentVolumeClaim",
        "emptyDir",
    ),
    "a Secret for checkpoints": (
        {"volumes": ["emptyDir"]},
        {"checkpoint": {"storage": {"uri": "s3://b", "secretRef": {"name": "s"}}}},
        "spec.checkpoint.storage.secretRef",
        "not secret",
    ),
    "a ConfigMap with code": (
        {"volumes": []},
        {"trainer": {"script": "train.py", "code": {"configMap": {"name": "c"}}}},
        "spec.trainer.code.configMap",
        "no volumes",
    ),
    "a Secret in a variable": ({"volumes": ["emptyDir"]}, trainer(**ENV), f"{POD}.containers[0].env[0].valueFrom.secretKeyRef", "emptyDir"),
    "a Secret in a variable of all roles": (
        {"volumes": ["emptyDir"]},
        {"trainer": {"task": "digits", **ENV}},
        "spec.trainer.env[0].valueFrom.secretKeyRef",
        "emptyDir",
    ),
    "a Secret as an environment": (
        {"volumes": ["emptyDir"]},
        pod(initContainers=[{"name": "i", "image": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]),
        f"{POD}.initContainers[0].envFrom[0].secretRef",
        "emptyDir",
    ),
    "the host's network": ({"templates": "Restricted"}, pod(hostNetwork=True), f"{POD}.hostNetwork", "nodeSelector"),
    "the host's processes": ({"templates": "Restricted"}, pod(hostPID=True), f"{POD}.hostPID", "nodeSelector"),
    "a node": ({"templates": "Restricted"}, pod(nodeName="control-plane-1"), f"{POD}.nodeName", "nodeSelector"),
    "every taint": ({"templates": "Restricted"}, pod(tolerations=[{"operator": "Exists"}]), f"{POD}.tolerations", "nodeSelector"),
    "no security context": ({"templates": "Restricted"}, pod(securityContext=None), f"{POD}.securityContext", "nodeSelector"),
    "all that Muster sets replaced": ({"templates": "Restricted"}, pod(**{"$patch": "replace"}), f"{POD}[$patch]", "no patch directive"),
    "labels of nodes that the installation sets replaced": (
        {"templates": "Restricted"},
        pod(nodeSelector={"$patch": "replace", "pool": "vip"}),
        f"{POD}.nodeSelector[$patch]",
        "no patch directive",
    ),
    "a variable that the installation sets removed": (
        {"templates": "Restricted"},
        trainer(env=[{"name": "HTTP_PROXY", "$patch": "delete"}]),
        f"{POD}.containers[0].env[0][$patch]",
        "no patch directive",
    ),
    "a privileged container": (
        {"templates": "Restricted"},
        trainer(securityContext={"privileged": True}),
        f"{POD}.containers[0].securityContext",
        "volumeMounts",
    ),
    "a port of the host": (
        {"templates": "Restricted"},
        trainer(ports=[{"containerPort": 80, "hostPort": 80}]),
        f"{POD}.containers[0].ports[0].hostPort",
        "containerPort",
    ),
    "any template": ({"templates": "None"}, pod(nodeSelector={"a": "b"}), "spec.roles.worker.template", "leave it out"),
    "replicas": ({"maxReplicasPerJob": 4}, {"roles": {"worker": {"replicas": 5}}}, "spec.roles", "allows 4"),
    "replicas of all roles": (
        {"maxReplicasPerJob": 4},
        {"strategy": "ParameterServer", "roles": {"worker": {"replicas": 2}, "ps": {"replicas": 2}, "chief": {}}},
        "spec.roles",
        "makes 5",
    ),
    "growth": (
        {"maxReplicasPerJob": 4},
        {"elastic": {"minReplicas": 1, "maxReplicas": 8}},
        "spec.elastic.maxReplicas",
        "makes 8",
    ),
}


@pytest.mark.parametrize(("limits", "changes", "field", "words"), REFUSED.values(), ids=REFUSED)
def test_the_policy_refuses_a_job_with_the_field_and_the_allowed_values(
    limits: dict[str, Any], changes: dict[str, Any], field: str, words: str
) -> None:
    [problem] = violations(policy(**limits), spec(**changes))
    assert problem.field == field
    assert words in problem.message
    assert violations(UNLIMITED, spec(**changes)) == []


HONEST: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no template": ({"templates": "None", "serviceAccounts": [], "priorityClasses": [], "volumes": []}, {}),
    "an allowed name": ({"serviceAccounts": ["train"]}, pod(serviceAccountName="train")),
    "a token of an allowed account": ({"serviceAccounts": ["train"]}, pod(serviceAccountName="train", automountServiceAccountToken=True)),
    "any name": ({"serviceAccounts": ["*"]}, pod(serviceAccountName="train")),
    "an allowed class": ({"priorityClasses": ["low"]}, {"scheduling": {"priorityClassName": "low"}}),
    "an allowed source": (
        {"volumes": ["configMap"]},
        pod(volumes=[{"name": "p", "projected": {"sources": [{"configMap": {"name": "c"}}]}}]),
    ),
    "a plain variable": ({"volumes": []}, trainer(env=[{"name": "A", "value": "b"}])),
    "a restricted template": (
        {"templates": "Restricted"},
        trainer(image="own", resources={"limits": {"cpu": "1"}}, ports=[{"containerPort": 6006, "name": "board"}]),
    ),
    "as many replicas as allowed": ({"maxReplicasPerJob": 2}, {}),
}


@pytest.mark.parametrize(("limits", "changes"), HONEST.values(), ids=HONEST)
def test_the_policy_accepts_allowed_jobs(limits: dict[str, Any], changes: dict[str, Any]) -> None:
    assert violations(policy(**limits), spec(**changes)) == []


@pytest.mark.parametrize(
    "template",
    [{"spec": 3}, {"spec": {"volumes": "x", "containers": [7, None, {"env": {"a": 1}, "envFrom": [3], "ports": {}}]}}, {"metadata": []}],
)
@pytest.mark.parametrize("templates", ["Full", "Restricted", "None"])
def test_a_template_of_any_shape_is_read_without_an_error(template: dict[str, Any], templates: str) -> None:
    job = spec(roles={"worker": {"template": template}})
    assert isinstance(violations(policy(templates=templates, volumes=[], serviceAccounts=[], priorityClasses=[]), job), list)
