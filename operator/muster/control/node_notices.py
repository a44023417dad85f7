"""The notices of the cluster's nodes, from watches. A job with a pod on a node whose notice changes gets a pass.

The time at which Karpenter expires a node is known weeks before. So it becomes a notice when the job is to leave the node. The next pass of
the job shows it.
"""

from __future__ import annotations

import heapq
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from muster.api.status import EXPIRY, Meaning, NodeNotice
from muster.api.times import milliseconds
from muster.control.node_signals import NodeSignal, expiry_of, notice_of
from muster.kubernetes.objects import Object
from muster.lifecycle.policy import DEFAULT_POLICY


class NodeNotices:
    """`changed` is called with the name of a node whose notice has come, changed or gone. `now` returns the time."""

    def __init__(self, signals: Sequence[NodeSignal], *, now: Callable[[], datetime], changed: Callable[[str], None]) -> None:
        self._signals = signals
        self._now = now
        self._changed = changed
        self._notices: dict[str, NodeNotice] = {}
        self._expiries: dict[str, datetime] = {}
        self._coming: list[tuple[datetime, str]] = []
        """The same times and nodes as a heap. Entries of expiries that have changed stay until their time."""
        self._expiring: dict[str, NodeNotice] = {}
        self._are_known = False

    @property
    def newest(self) -> Mapping[str, NodeNotice] | None:
        """The notices by node. None until the watch has delivered a node."""
        now = self._now()
        while self._coming and self._coming[0][0] <= now + DEFAULT_POLICY.notice_time:
            time, node = heapq.heappop(self._coming)
            if self._expiries.get(node) == time:
                self._expiring[node] = NodeNotice(node=node, signal=EXPIRY, meaning=Meaning.GOES, since=milliseconds(now), goes_time=time)
        if not self._are_known:
            return None
        only_expire = {name: each for name, each in self._expiring.items() if not self._goes(name)}
        return ChainMap(only_expire, self._notices)

    def _goes(self, node: str) -> bool:
        """Whether the node itself announces that it goes."""
        return node in self._notices and self._notices[node].meaning is Meaning.GOES

    def claim(self, kind: str, claim: Object) -> None:
        """Takes a change of a NodeClaim. What its node announces itself comes first."""
        node = str((claim.get("status") or {}).get("nodeName") or "")
        expiry = None if kind == "DELETED" else expiry_of(claim)
        if not node or self._expiries.get(node) == expiry:
            return
        self._expiries.pop(node, None)
        self._expiring.pop(node, None)
        if expiry is not None:
            self._expiries[node] = expiry
            heapq.heappush(self._coming, (expiry, node))
        self._changed(node)

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
