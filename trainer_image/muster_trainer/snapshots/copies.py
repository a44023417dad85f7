"""Decides which snapshots a spare copies into its memory. Pure.

A spare does not know which replica it will replace. So it copies the parts of the newest complete snapshot, as many as fit. A part has two
slots, as in the memory of a rank: the newest copy stays in one while the next is written to the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from muster_trainer.snapshots.arena import HEADER_BYTES, MOST_SLOTS, PAGE, FilledSlot, Header
from muster_trainer.snapshots.choice import generation_of


@dataclass(frozen=True)
class Copy:
    """One part to copy: from a slot of a source, to a slot of the spare."""

    source: int
    slot: int
    header: Header
    into: int


@dataclass(frozen=True)
class CopyPlan:
    """The layout of the spare's memory, and the parts that it lacks."""

    slots: int
    stride: int
    copies: tuple[Copy, ...]


def plan_copies(
    offers: Sequence[Collection[FilledSlot]], held: Collection[FilledSlot], *, job: str, size: int, spare: int
) -> CopyPlan | None:
    """What a spare copies next. None if there is no snapshot, or no room for one.

    The newest complete snapshot is the newest one that has as many parts as any: the sources may be about to complete another.

    Args:
        offers: the filled slots of each source.
        held: the filled slots of the spare.
        job: the uid of the job.
        size: bytes of the spare's memory.
        spare: the index of the spare. If there is no room for all parts, it decides which ones are copied.
    """
    own = [(source, each) for source, slots in enumerate(offers) for each in slots if each.header.job == job]
    if not own:
        return None
    identity = max((each.header for _, each in own), key=generation_of).identity
    parts: dict[tuple[int, int], dict[str, tuple[int, FilledSlot]]] = {}
    for source, each in own:
        if each.header.identity == identity:
            parts.setdefault(generation_of(each.header), {}).setdefault(each.header.shard, (source, each))
    most = max(map(len, parts.values()))
    generation = max(each for each, shards in parts.items() if len(shards) == most)
    newest = parts[generation]
    stride = _aligned(HEADER_BYTES + max(each.header.size for _, each in newest.values()))
    count = min(most, (size - PAGE) // stride // 2, MOST_SLOTS // 2)
    if count < 1:
        return None
    shards, first = sorted(newest), spare * count % most
    generations = {each.slot: (generation_of(each.header), each.header.shard) for each in held}
    copies = []
    for place, shard in enumerate((shards[first:] + shards[:first])[:count]):
        pair = (2 * place, 2 * place + 1)
        if any(generations.get(slot) == (generation, shard) for slot in pair):
            continue
        source, each = newest[shard]
        oldest = min(pair, key=lambda slot: generations.get(slot, ((-1, 0), "")))
        copies.append(Copy(source, each.slot, each.header, into=oldest))
    return CopyPlan(2 * count, stride, tuple(copies))


def _aligned(size: int) -> int:
    return -(-size // PAGE) * PAGE
