"""The cause in real messages of kube-scheduler 1.30 to 1.37. They list a reason for each node, and few of the reasons count."""

from __future__ import annotations

from typing import Any

import pytest

from muster.explain.brief import brief
from muster.explain.evidence import Evidence, Source
from muster.explain.explain import explain, first_match
from muster.explain.scheduler_message import decisive
from tests.unit.explain.test_explain import STARTING, causes, of, pod, unscheduled

CONTROL_PLANE = "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"
UNNAMED = "1 node(s) had untolerated taint(s)"


def message(*reasons: str, nodes: int, preemption: str = "Preemption is not helpful for scheduling") -> str:
    return f"0/{nodes} nodes are available: {', '.join(reasons)}. preemption: 0/{nodes} nodes are available: {nodes} {preemption}."


# Each row: the reasons that count, the causes in order, and what status.message says.
ROWS: dict[str, tuple[str, list[str], str]] = {
    "no device on kind, 1.37": (
        message(UNNAMED, "2 Insufficient nvidia.com/gpu", nodes=3),
        ["DevicesTaken"],
        "not enough nvidia.com/gpu is free",
    ),
    "no device on kind, 1.30": (
        message(CONTROL_PLANE, "2 Insufficient nvidia.com/gpu", nodes=3),
        ["DevicesTaken"],
        "not enough nvidia.com/gpu is free",
    ),
    "a selector that matches nothing, 1.37": (
        message(UNNAMED, "2 node(s) didn't match Pod's node affinity/selector", nodes=3),
        ["NodeSelector"],
        "no free node has the labels that the pods ask for",
    ),
    "a selector that matches nothing, 1.30": (
        message(CONTROL_PLANE, "2 node(s) didn't match Pod's node affinity/selector", nodes=3),
        ["NodeSelector"],
        "no free node has the labels that the pods ask for",
    ),
    "a selector that the scheduler applies before it looks at nodes": (
        message("3 node(s) didn't satisfy plugin(s) [NodeAffinity]", nodes=3),
        ["NodeSelector"],
        "no free node has the labels that the pods ask for",
    ),
    "no room beside the nodes of another team": (
        message("2 Insufficient cpu", "3 node(s) had untolerated taint {team: other}", nodes=5),
        ["CpuTaken"],
        "no node has enough free CPU for a pod",
    ),
    "devices in use beside the nodes of another team": (
        message("2 Insufficient nvidia.com/gpu", "3 node(s) had untolerated taint {team: other}", nodes=5),
        ["DevicesTaken"],
        "not enough nvidia.com/gpu is free",
    ),
    "nodes with devices that are tainted for devices": (
        message("2 Insufficient nvidia.com/gpu", CONTROL_PLANE, "3 node(s) had untolerated taint {sku: gpu}", nodes=6),
        ["DevicesTainted"],
        "the nodes with nvidia.com/gpu are tainted or in use, and the pods do not tolerate the taint",
    ),
    "too little of two resources": (
        message(UNNAMED, "2 Insufficient cpu", "2 Insufficient memory", nodes=3),
        ["MemoryTaken", "CpuTaken"],
        "no node has enough free memory for a pod; no node has enough free CPU for a pod",
    ),
    "a claim without a volume": (
        message("pod has unbound immediate PersistentVolumeClaims", nodes=3),
        ["ClaimUnbound"],
        "the claim has no volume yet",
    ),
    "no volume can be made, 1.37": (
        message(UNNAMED, "2 node(s) did not have enough free storage", nodes=3),
        ["ClaimUnbound"],
        "the claim has no volume yet",
    ),
    "a volume in another zone, 1.30": (
        message(CONTROL_PLANE, "1 Insufficient cpu", "1 node(s) had volume node affinity conflict", nodes=3),
        ["VolumeElsewhere", "CpuTaken"],
        "the volume can be used only in a zone or on a node that has no room for the pods; no node has enough free CPU for a pod",
    ),
    "a volume in another zone, 1.37": (
        message(UNNAMED, "2 node(s) didn't match PersistentVolume's node affinity", nodes=3),
        ["VolumeElsewhere"],
        "the volume can be used only in a zone or on a node that has no room for the pods",
    ),
    "a volume that is gone": (
        message(UNNAMED, "2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)", nodes=3),
        ["ClaimLost"],
        "the volume of the claim is gone",
    ),
    "a spread over zones": (
        message(UNNAMED, "2 node(s) didn't match pod topology spread constraints", nodes=3, preemption="No preemption victims found"),
        ["TopologySpread"],
        "the pods cannot be spread as topologySpreadConstraints asks",
    ),
    "anti-affinity": (
        message(CONTROL_PLANE, "2 node(s) didn't match pod anti-affinity rules", nodes=3),
        ["AntiAffinity"],
        "the pods may not share nodes with other pods (anti-affinity), and no further node is free",
    ),
    "cordoned workers, 1.37": (
        message(UNNAMED, "2 node(s) were unschedulable", nodes=3),
        ["Cordoned"],
        "nodes that the pods could use are cordoned",
    ),
    "a cordoned node beside a full one": (
        message(UNNAMED, "1 Insufficient cpu", "1 node(s) were unschedulable", nodes=3),
        ["CpuTaken"],
        "no node has enough free CPU for a pod",
    ),
    "a claim for devices": (
        message(UNNAMED, "2 cannot allocate all claims", nodes=3),
        ["DeviceClaim"],
        "the devices of a ResourceClaim cannot be allocated",
    ),
    "a device class that does not exist": (
        message("request gpu: device class gpu.example.com does not exist", nodes=3),
        ["DeviceClaim"],
        "the devices of a ResourceClaim cannot be allocated",
    ),
    "one broken node among many full ones": (
        message("1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }", "9 Insufficient nvidia.com/gpu", nodes=10),
        ["DevicesTaken"],
        "not enough nvidia.com/gpu is free",
    ),
    "broken nodes beside a full one": (
        message("1 Insufficient cpu", "2 node(s) had untolerated taint {node.kubernetes.io/not-ready: }", nodes=3),
        ["NodesNotReady", "CpuTaken"],
        "nodes that the pods need are not ready; no node has enough free CPU for a pod",
    ),
    "a pod that may not preempt others": (
        f"0/3 nodes are available: {UNNAMED}, 2 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never..",
        ["CpuTaken"],
        "no node has enough free CPU for a pod",
    ),
    "nothing but tainted nodes, 1.37": (
        message("3 node(s) had untolerated taint(s)", nodes=3),
        ["Tainted"],
        "the nodes are tainted, and the pods do not tolerate it",
    ),
    "nothing but tainted nodes, 1.30": (
        message("2 node(s) had untolerated taint {team: other}", CONTROL_PLANE, nodes=3),
        ["Tainted", "ControlPlaneOnly"],
        "the nodes are tainted (team: other), and the pods do not tolerate it; only control-plane nodes are left, and these take no pods",
    ),
}


@pytest.mark.parametrize(("text", "expected", "sentence"), ROWS.values(), ids=ROWS)
def test_a_message_of_the_scheduler_has_the_causes_that_count(text: str, expected: list[str], sentence: str) -> None:
    assert causes(of(STARTING, pod(status=unscheduled(text)))) == expected
    assert brief(Source.SCHEDULING, "Unschedulable", text) == sentence
    first = first_match(Evidence(Source.SCHEDULING, "Unschedulable", text))
    assert first is not None
    assert first[1].cause.id == expected[0]


def test_a_reason_that_the_message_does_not_list_stays() -> None:
    assert decisive("no nodes available to schedule pods") == ("no nodes available to schedule pods",)


def test_a_made_up_message_with_thousands_of_reasons_takes_little_time() -> None:
    text = message("1 Insufficient cpu", *(f"{number} made up" for number in range(100_000)), nodes=3)
    assert len(decisive(text)) < 20
    assert causes(of(STARTING, pod(status=unscheduled(text)))) == ["CpuTaken"]


def test_the_sentence_of_preemption_is_not_a_cause() -> None:
    text = message(UNNAMED, "2 node(s) didn't match pod topology spread constraints", nodes=3, preemption="Insufficient memory")
    assert causes(of(STARTING, pod(status=unscheduled(text)))) == ["TopologySpread"]


GPU = {"nvidia.com/gpu": "8", "cpu": "64"}
FOR_GPUS = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def node(name: str, allocatable: dict[str, str], *taints: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}, "status": {"allocatable": allocatable}}


def waiting_pod(text: str, **spec: Any) -> dict[str, Any]:
    view = pod(status=unscheduled(text))
    view["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    view["spec"] |= spec
    return view


CONTROL = node("control", {"cpu": "8"}, {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"})
ONLY_TAINTED = (CONTROL, node("cpu-1", {"cpu": "8"}), node("gpu-1", GPU, FOR_GPUS))
TEXT = message("2 node(s) had untolerated taint(s)", "1 Insufficient nvidia.com/gpu", nodes=3)


def test_the_nodes_show_that_all_nodes_with_the_devices_are_tainted() -> None:
    [finding] = explain(of(STARTING, waiting_pod(TEXT), nodes=ONLY_TAINTED)).findings
    assert finding.cause.id == "Tainted"
    assert "dedicated: training" in finding.sentence


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        pytest.param({}, (*ONLY_TAINTED, node("gpu-2", GPU)), id="an untainted node has the devices"),
        pytest.param({}, (CONTROL, node("cpu-1", {"cpu": "8"})), id="no node has the devices"),
        pytest.param({"nodeSelector": {"zone": "b"}}, ONLY_TAINTED, id="the tainted node lacks the label"),
        pytest.param({"tolerations": [{"key": "dedicated", "operator": "Exists"}]}, ONLY_TAINTED, id="the pod tolerates the taint"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, ONLY_TAINTED, id="the pod tolerates all taints"),
    ],
)
def test_a_taint_of_nodes_that_could_not_run_the_pod_is_no_cause(spec: dict[str, Any], nodes: tuple[dict[str, Any], ...]) -> None:
    assert "Tainted" not in causes(of(STARTING, waiting_pod(TEXT, **spec), nodes=nodes))


def test_nodes_that_are_not_ready_are_the_cause_of_a_taint_without_a_name() -> None:
    text = message("2 node(s) had untolerated taint(s)", nodes=2)
    nodes = (CONTROL, node("gpu-1", GPU, NOT_READY))
    assert causes(of(STARTING, waiting_pod(text), nodes=nodes)) == ["NodesNotReady"]
