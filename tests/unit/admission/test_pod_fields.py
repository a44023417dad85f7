"""The fields of a pod template are those of Kubernetes."""

import pytest

from muster.admission.pod_fields import field_findings
from muster.admission.sentences import MAX_PROBLEMS
from tests.support.texts import absent


def container(**fields: object) -> dict:
    return {"containers": [{"name": "trainer", **fields}]}


SLIPS = [
    ({"toleration": []}, "spec.toleration", "did you mean tolerations?"),
    ({"nodeselector": {}}, "spec.nodeselector", "did you mean nodeSelector?"),
    ({"image_pull_secrets": []}, "spec.image_pull_secrets", "did you mean imagePullSecrets?"),
    ({"env": []}, "spec.env", "containers: [{name: trainer, env"),
    (container(envs=[]), "spec.containers[0].envs", "did you mean env?"),
    (container(tolerations=[]), "spec.containers[0].tolerations", "template.spec.tolerations"),
    (container(gpus=1), "spec.containers[0].gpus", "nvidia.com/gpu: 1"),
    (container(imagePullPolicy="always"), "spec.containers[0].imagePullPolicy", "did you mean Always?"),
    (container(volumeMounts=[{"name": "a", "mountpath": "/a"}]), "spec.containers[0].volumeMounts[0].mountpath", "did you mean mountPath?"),
    (container(livenessProbe={"httpget": {}}), "spec.containers[0].livenessProbe.httpget", "did you mean httpGet?"),
    (container(securityContext={"runAsUser": "5"}), "spec.containers[0].securityContext.runAsUser", "take the quotes away"),
    (container(securityContext={"privileged": "yes"}), "spec.containers[0].securityContext.privileged", "true or false"),
    (container(workingDir=5), "spec.containers[0].workingDir", "quotes"),
    ({"tolerations": [{"operator": "Exist"}]}, "spec.tolerations[0].operator", "did you mean Exists?"),
    ({"tolerations": [{"effect": "NoScheduled"}]}, "spec.tolerations[0].effect", "did you mean NoSchedule?"),
    ({"tolerations": [{"value": True}]}, "spec.tolerations[0].value", "YAML reads y, Y, yes, on and true as true"),
    ({"tolerations": ["gpu"]}, "spec.tolerations", "a list of mappings"),
    ({"nodeSelector": {"gpu": True}}, "spec.nodeSelector.gpu", "quotes"),
    ({"nodeSelector": {"zone": 1}}, "spec.nodeSelector.zone", "not 1: put it in quotes"),
    ({"nodeSelector": "gpu"}, "spec.nodeSelector", "a mapping"),
    ({"dnsPolicy": "None_"}, "spec.dnsPolicy", "did you mean None?"),
    ({"volumes": [{"name": "a", "pvc": {}}]}, "spec.volumes[0].pvc", "persistentVolumeClaim: {claimName"),
    ({"volumes": [{"name": "a", "emptyDir": []}]}, "spec.volumes[0].emptyDir", "a mapping"),
    ({"affinity": {"nodeaffinity": {}}}, "spec.affinity.nodeaffinity", "did you mean nodeAffinity?"),
]


@pytest.mark.parametrize(("spec", "field", "fact"), SLIPS)
def test_a_slip_in_a_field_of_a_pod_is_refused_with_what_was_meant(spec: dict, field: str, fact: str) -> None:
    findings = field_findings(spec, "spec")
    [problem] = findings.problems
    assert (problem.field, absent(problem.message, fact), findings.remarks) == (field, [], [])


RIGHT = [
    {"nodeSelector": {"gpu": "true"}, "tolerations": [{"key": "a", "operator": "Exists"}], "runtimeClassName": None},
    {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, "hostIPC": True},
    {"volumes": [{"name": "a", "emptyDir": {"medium": "", "sizeLimit": 5}}, {"name": "b", "$patch": "delete"}]},
    {"securityContext": {"$patch": "replace", "fsGroup": 5}, "schedulingGroup": {}, "evictionResponders": []},
    container(livenessProbe={"httpGet": {"port": "health"}}, ports=[{"containerPort": 5}], envFrom=[{"secretRef": {"name": "a"}}]),
]


@pytest.mark.parametrize("spec", RIGHT)
def test_the_fields_of_kubernetes_are_accepted(spec: dict) -> None:
    findings = field_findings(spec, "spec")
    assert (findings.problems, findings.remarks) == ([], [])


def test_a_field_that_resembles_none_may_be_of_a_newer_kubernetes_and_gets_a_remark() -> None:
    findings = field_findings({"brandNew": {"any": [1]}}, "spec")
    assert findings.problems == []
    [remark] = findings.remarks
    assert (remark.field, absent(remark.message, "Kubernetes 1.", "drops it")) == ("spec.brandNew", [])


def test_the_names_of_a_hostile_template_are_not_all_compared() -> None:
    findings = field_findings({f"nodeSelecto{number}": 1 for number in range(4000)}, "spec")
    assert len(findings.problems) == MAX_PROBLEMS
