"""What users read about nodes that announce that they go."""

from __future__ import annotations

from muster.api.spec import NodeNotices
from muster.api.status import Meaning, NodeNotice, Reason, TrainingJobStatus
from muster.lifecycle.facts import node_notices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.present.waiting import listed


def notice_sentence(status: TrainingJobStatus, facts: Facts) -> str:
    """The notice that matters most for the world, and what the job does about it. Empty without one."""
    notice = _most_urgent(status, facts)
    if notice is None:
        return ""
    here = listed(_labels_on(notice.node, status, facts))
    if notice.meaning is Meaning.TAKES_NO_PODS:
        return f"node {notice.node} of {here} takes no new pods ({notice.signal})"
    when = f" at {notice.goes_time:%H:%M:%S} UTC" if notice.goes_time else ""
    return f"node {notice.node} of {here} goes{when} ({notice.signal}): {_plan(status, facts)}"


def reason_of(status: TrainingJobStatus, facts: Facts) -> Reason:
    notice = _most_urgent(status, facts)
    if notice is None:
        return Reason.NO_NOTICE
    return Reason.NODE_GOES if notice.meaning is Meaning.GOES else Reason.NO_NEW_PODS


def _most_urgent(status: TrainingJobStatus, facts: Facts) -> NodeNotice | None:
    return node_notices.most_urgent(each for each in status.node_notices if _labels_on(each.node, status, facts))


def _labels_on(node: str, status: TrainingJobStatus, facts: Facts) -> list[str]:
    members = status.world.member_of if status.world else {}
    return [view.label for view in facts.replicas if view.node == node and view.uid in members]


def _plan(status: TrainingJobStatus, facts: Facts) -> str:
    """What the job does about nodes that go. Whether a program of the user saves is its own matter."""
    saves = "saves, and " if facts.runs_bundled_loop and facts.spec.checkpoint.storage is not None else ""
    if facts.spec.recovery.node_notices is NodeNotices.SAVE:
        return f"the job {saves}stays (recovery.nodeNotices: Save)"
    if facts.spec.elastic is not None:
        enough = len(node_notices.staying(status, facts)) >= facts.spec.elastic.min_replicas
        return "the others go on without it" if enough else "too few workers would remain, so the job stays until then"
    coming = [view for view in facts.standing_by if view.node not in node_notices.going(status, facts)]
    if coming and all(view.unschedulable for view in coming):
        return f"no node is free for a replacement yet, so the job {saves}trains on"
    if node_notices.wanted(status, facts):
        return f"the job {saves}moves once a replacement is ready"
    return f"the job {saves}stays until then, because its workers cannot be replaced while it trains"
