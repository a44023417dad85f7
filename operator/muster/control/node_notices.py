"""The notices of the cluster's nodes, from a watch. A job with a pod on a node whose notice changes gets a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from muster.api.status import NodeNotice
from muster.control.node_signals import NodeSignal, notice_of
from muster.kubernetes.objects import Object


class NodeNotices:
    """`changed` is called with the name of a node whose notice has come, changed or gone. `now` returns the time."""

    def __init__(self, signals: Sequence[NodeSignal], *, now: Callable[[], datetime], changed: Callable[[str], None]) -> None:
        self._signals = signals
        self._now = now
        self._changed = changed
        self._notices: dict[str, NodeNotice] = {}
        self._are_known = False

    @property
    def newest(self) -> dict[str, NodeNotice] | None:
        """The notices by node. None until the watch has delivered a node."""
        return self._notices if self._are_known else None

    def node(self, kind: str, node: Object) -> None:
        """Takes a change of a node: ADDED, MODIFIED or DELETED. A node that is gone has no notice: its pods are lost, which shows by
        itself."""
        self._are_known = True
        name = str(node["metadata"]["name"])
        before = self._notices.get(name)
        after = None if kind == "DELETED" else notice_of(node, self._signals, self._now())
        if after is not None and before is not None and (after.signal, after.meaning) == (before.signal, before.meaning):
            return  # the signal was seen before, and its time counts from then on
        if after is None:
            self._notices.pop(name, None)
        else:
            self._notices[name] = after
        if after != before:
            self._changed(name)
