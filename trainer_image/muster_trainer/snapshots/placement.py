"""Which ranks keep a snapshot of their own, and to which ranks copies go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster_contract.wire import document, wire_field


@document
class Place:
    """Where a rank runs."""

    pod: str = wire_field(max_length=253)
    node: str = wire_field(default="", max_length=253)
    """Name of the node. Empty: unknown."""
    memory: int = wire_field(default=0, minimum=0)
    """Bytes of its memory for snapshots."""


@dataclass(frozen=True)
class Placement:
    """`keepers` keep their own snapshots. Each of `copies` is (sender, receiver). `holders` is the least number of pods with a shard."""

    keepers: frozenset[int]
    copies: tuple[tuple[int, int], ...]
    holders: int

    def sent_by(self, rank: int) -> list[int]:
        return [receiver for sender, receiver in self.copies if sender == rank]

    def received_by(self, rank: int) -> list[int]:
        return [sender for sender, receiver in self.copies if receiver == rank]

    @property
    def slots(self) -> int:
        """Slots that each rank needs: two for its own snapshots, and two for those of each rank that it receives from. The newest complete
        snapshot stays in one of them while the next is written to the other."""
        ranks = {receiver for _, receiver in self.copies}
        return 2 * (1 + max((len(self.received_by(rank)) for rank in ranks), default=0))


def place(places: Sequence[Place], shards: Sequence[str], *, copies: int) -> Placement:
    """Each shard is to be in `copies` pods besides one. Ranks of several pods may have the same shard; then no copy is sent, or fewer.

    Copies go round the pods: to the next one, but rather to one on a node that does not hold the shard yet, and to one with fewer copies.
    All ranks compute the same.
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
