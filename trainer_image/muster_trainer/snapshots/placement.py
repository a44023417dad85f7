"""Decides which ranks store their own snapshot, and which ranks get copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster_contract.wire import document, wire_field


@document
class Place:
    """The node and the memory of a rank."""

    pod: str = wire_field(max_length=253)
    node: str = wire_field(default="", max_length=253)
    """The name of the node. Empty if it is not available."""
    memory: int = wire_field(default=0, minimum=0)
    """The size of the rank's memory for snapshots, in bytes."""


@dataclass(frozen=True)
class Placement:
    """`keepers` are the ranks that store their own snapshots. Each of `copies` is (sender, receiver). `holders` is the number of pods that
    have a shard, for the shard with the fewest."""

    keepers: frozenset[int]
    copies: tuple[tuple[int, int], ...]
    holders: int

    def sent_by(self, rank: int) -> list[int]:
        return [receiver for sender, receiver in self.copies if sender == rank]

    def received_by(self, rank: int) -> list[int]:
        return [sender for sender, receiver in self.copies if receiver == rank]

    @property
    def slots(self) -> int:
        """The number of slots that each rank needs: two for its own snapshots, and two for those of each rank that sends to it. The newest
        complete snapshot stays in one of the two while the next is written to the other."""
        ranks = {receiver for _, receiver in self.copies}
        return 2 * (1 + max((len(self.received_by(rank)) for rank in ranks), default=0))


def place(places: Sequence[Place], shards: Sequence[str], *, copies: int) -> Placement:
    """Places each shard in one pod and copies of it in `copies` other pods. All ranks compute the same result.

    If ranks of several pods have the same shard, fewer copies are sent, or none. A copy goes to the next pod, in a circle. Pods on a node
    without the shard are preferred, and then pods with fewer copies.
    """
    pods: dict[str, list[int]] = {}
    for rank, each in enumerate(places):
        pods.setdefault(each.pod, []).append(rank)
    order = list(pods)
    node_of = {each.pod: each.node or each.pod for each in places}
    keepers: dict[str, list[int]] = {}
    for ranks in pods.values():
        for shard in dict.fromkeys(shards[rank] for rank in ranks):
            keepers.setdefault(shard, []).append(next(rank for rank in ranks if shards[rank] == shard))
    sent: list[tuple[int, int]] = []
    load = dict.fromkeys(range(len(places)), 0)
    least = len(places)
    for own in keepers.values():
        sender = own[0]
        home = places[sender].pod
        having = [places[rank].pod for rank in own]
        position = pods[home].index(sender)
        while len(having) < copies + 1 and len(having) < len(order):
            nodes = {node_of[pod] for pod in having}
            start = order.index(home) + 1
            candidates = [pod for pod in order[start:] + order[:start] if pod not in having]
            receivers = {pod: pods[pod][position % len(pods[pod])] for pod in candidates}
            chosen = min(candidates, key=lambda pod: (node_of[pod] in nodes, load[receivers[pod]]))
            load[receivers[chosen]] += 1
            having.append(chosen)
            sent.append((sender, receivers[chosen]))
        least = min(least, len(having))
    return Placement(frozenset(rank for own in keepers.values() for rank in own), tuple(sent), least)
