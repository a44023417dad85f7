"""What nodes announce: the taints, labels and conditions that clouds and autoscalers set."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.status import Meaning, NodeNotice
from muster.control.node_notices import NodeNotices
from muster.control.node_signals import KNOWN, Kind, NodeSignal, notice_of
from tests.unit.lifecycle.lifecycle_cases import T0, at


def node(
    *, taints: Any = (), labels: Any = None, conditions: Any = (), unschedulable: bool = False, deleted: bool = False
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "a", "labels": labels}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    spec = {"taints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in taints], "unschedulable": unschedulable}
    status = {"conditions": [{"type": kind, "status": holds, "reason": reason} for kind, holds, reason in conditions]}
    return {"metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("parts", "signal", "seconds"),
    [
        ({"taints": [("karpenter.sh/disrupted", "")]}, "taint karpenter.sh/disrupted", None),
        ({"taints": [("karpenter.sh/disruption", "disrupting")]}, "taint karpenter.sh/disruption", None),
        ({"taints": [("aws-node-termination-handler/spot-itn", "1")]}, "taint aws-node-termination-handler/spot-itn", 120),
        ({"taints": [("cloud.google.com/impending-node-termination", "")]}, "taint cloud.google.com/impending-node-termination", 30),
        ({"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}, "label cloud.google.com/active-node-maintenance", None),
        (
            {"labels": {"cloud.google.com/scheduled-maintenance-time": str(int(at(600).timestamp()))}},
            f"label cloud.google.com/scheduled-maintenance-time={int(at(600).timestamp())}",
            600,
        ),
        ({"conditions": [("VMEventScheduled", "True", "PreemptScheduled")]}, "condition VMEventScheduled", None),
        ({"conditions": [("KernelDeadlock", "True", "DockerHung")]}, "condition KernelDeadlock", None),
        ({"taints": [("ToBeDeletedByClusterAutoscaler", "1764400000")]}, "taint ToBeDeletedByClusterAutoscaler", None),
        ({"taints": [("node.kubernetes.io/out-of-service", "nodeshutdown")]}, "taint node.kubernetes.io/out-of-service", None),
        ({"deleted": True}, "the node is being deleted", None),
        ({"taints": [("karpenter.sh/disrupted", "")], "unschedulable": True}, "taint karpenter.sh/disrupted", None),
        (
            {"taints": [("karpenter.sh/disrupted", ""), ("aws-node-termination-handler/spot-itn", "1")]},
            "taint aws-node-termination-handler/spot-itn",
            120,
        ),
    ],
)
def test_a_node_goes(parts: dict[str, Any], signal: str, seconds: float | None) -> None:
    goes_time = None if seconds is None else at(seconds)
    expected = NodeNotice(node="a", signal=signal, meaning=Meaning.GOES, since=T0, goes_time=goes_time)
    assert notice_of(node(**parts), KNOWN, T0) == expected


@pytest.mark.parametrize(
    "parts", [{"unschedulable": True}, {"taints": [("DeletionCandidateOfClusterAutoscaler", "1764400000")]}], ids=["cordoned", "candidate"]
)
def test_a_node_takes_no_new_pods(parts: dict[str, Any]) -> None:
    notice = notice_of(node(**parts), KNOWN, T0)
    assert notice
    assert notice.meaning is Meaning.TAKES_NO_PODS


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"taints": [("nvidia.com/gpu", "present"), ("node-role.kubernetes.io/control-plane", "")]},
        {"taints": [("karpenter.sh/disruption", "other")]},
        {"taints": [("node.kubernetes.io/not-ready", "")]},
        {"conditions": [("VMEventScheduled", "False", "PreemptScheduled"), ("KernelDeadlock", "Unknown", "")]},
        {"conditions": [("VMEventScheduled", "True", "FreezeScheduled")]},
        {"labels": {"cloud.google.com/scheduled-maintenance-time": "soon"}},
        {"labels": {"cloud.google.com/scheduled-maintenance-time": "9" * 30}},
    ],
)
def test_a_node_that_stays_gives_no_notice(parts: dict[str, Any]) -> None:
    assert notice_of(node(**parts), KNOWN, T0) is None


def test_an_administrator_adds_a_signal() -> None:
    ours = NodeSignal(Kind.LABEL, "example.com/retire", values=frozenset({"today"}), seconds=60)
    notice = notice_of(node(labels={"example.com/retire": "today"}), (ours, *KNOWN), T0)
    assert notice
    assert notice.goes_time == at(60)
    assert notice_of(node(labels={"example.com/retire": "never"}), (ours, *KNOWN), T0) is None


nonsense = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5), lambda deeper: st.lists(deeper) | st.dictionaries(st.text(), deeper)
)


@given(taints=nonsense, conditions=nonsense)
def test_no_content_of_a_node_breaks_the_reader(taints: Any, conditions: Any) -> None:
    odd = {"metadata": {"name": "a"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}
    assert notice_of(odd, KNOWN, T0) is None


def claim(after: str | None = "1h", *, node: str | None = "a") -> dict[str, Any]:
    created = f"{T0:%Y-%m-%dT%H:%M:%SZ}"
    return {"metadata": {"creationTimestamp": created}, "spec": {"expireAfter": after}, "status": {"nodeName": node}}


def test_a_node_of_karpenter_gives_notice_a_quarter_of_an_hour_before_it_expires() -> None:
    now = T0
    changed: list[str] = []
    notices = NodeNotices(KNOWN, now=lambda: now, changed=changed.append)
    notices.node("ADDED", node())
    notices.claim("ADDED", claim("1h30m"))
    notices.claim("MODIFIED", claim("1h"))
    notices.claim("MODIFIED", claim("1h"))
    assert changed == ["a", "a"]
    now = at(2699)
    assert notices.newest == {}
    now = at(2700)
    assert notices.newest == {
        "a": NodeNotice(node="a", signal="spec.expireAfter of its NodeClaim", meaning=Meaning.GOES, since=now, goes_time=at(3600))
    }
    notices.node("MODIFIED", node(taints=[("karpenter.sh/disrupted", "")]))
    newest = notices.newest or {}
    assert newest["a"].signal == "taint karpenter.sh/disrupted"
    notices.node("MODIFIED", node(unschedulable=True))
    newest = notices.newest or {}
    assert newest["a"].signal == "spec.expireAfter of its NodeClaim", "a cordon says less"
    notices.node("MODIFIED", node())
    notices.claim("DELETED", claim())
    now = at(9000)
    assert notices.newest == {}


@pytest.mark.parametrize("never", [claim("Never"), claim(None), claim(""), claim("soon"), claim("9" * 12 + "h"), claim(node=None)])
def test_a_claim_that_does_not_expire_gives_no_notice(never: dict[str, Any]) -> None:
    notices = NodeNotices(KNOWN, now=lambda: at(9000), changed=lambda _: None)
    notices.node("ADDED", node())
    notices.claim("ADDED", never)
    assert notices.newest == {}


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> Any:
        self.now += timedelta(seconds=1)
        return self.now


def test_jobs_look_only_when_a_notice_comes_changes_or_goes() -> None:
    changed: list[str] = []
    notices = NodeNotices(KNOWN, now=Clock(), changed=changed.append)
    assert notices.newest is None
    notices.node("ADDED", node())
    assert (notices.newest, changed) == ({}, [])
    spot = node(taints=[("aws-node-termination-handler/spot-itn", "1")])
    notices.node("MODIFIED", spot)
    first = dict(notices.newest or {})
    notices.node("MODIFIED", spot)  # the heartbeat of the node
    assert (notices.newest, changed) == (first, ["a"])
    notices.node("MODIFIED", node(unschedulable=True))
    notices.node("MODIFIED", node())
    notices.node("DELETED", node())
    assert (notices.newest, changed) == ({}, ["a", "a", "a"])
