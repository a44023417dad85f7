"""Chooses the snapshot from which a new attempt resumes: the newest one of which some rank has every shard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from muster_contract.trainer_spec import TrainerSpec
from muster_contract.wire import encode
from muster_trainer.snapshots.arena import FilledSlot, Header

Generation = tuple[int, int]
"""(attempt, step) of a snapshot. The newest attempt is preferred, even if an older one has a later step. If the newest attempt resumed from
an earlier step, its training differs from that of the older attempt."""


@dataclass(frozen=True)
class CompleteSnapshot:
    """A complete snapshot. For each rank, `sources` has the rank and the slot from which it gets its shard."""

    generation: Generation
    sources: tuple[tuple[int, int], ...]
    headers: tuple[Header, ...]

    @property
    def step(self) -> int:
        return self.generation[1]


def generation_of(header: Header) -> Generation:
    return header.attempt, header.step


def choose(slots: Sequence[Collection[FilledSlot]], shards: Sequence[str]) -> CompleteSnapshot | None:
    """The newest complete snapshot; None if there is none. A rank uses its own memory if its shard is there.

    Args:
        slots: the filled slots of each rank.
        shards: the shard that each rank needs.
    """
    generations = {generation_of(each.header) for of_rank in slots for each in of_rank}
    for generation in sorted(generations, reverse=True):
        where: dict[str, dict[int, FilledSlot]] = {}
        for rank, of_rank in enumerate(slots):
            for each in of_rank:
                if generation_of(each.header) == generation:
                    where.setdefault(each.header.shard, {}).setdefault(rank, each)
        if all(shard in where for shard in shards):
            sources = [_source(rank, where[shard]) for rank, shard in enumerate(shards)]
            return CompleteSnapshot(
                generation,
                tuple((rank, each.slot) for rank, each in sources),
                tuple(each.header for _, each in sources),
            )
    return None


def _source(rank: int, holders: dict[int, FilledSlot]) -> tuple[int, FilledSlot]:
    if rank in holders:
        return rank, holders[rank]
    return min(holders.items(), key=lambda item: (item[0] - rank) % (max(holders) + rank + 1))


def identity_of(spec: TrainerSpec, world: int) -> str:
    """A digest of the settings that determine the training and the shape of its state, for a world of `world` ranks."""
    parts = [world, spec.strategy.name, spec.task, spec.module, dict(spec.config), encode(spec.batch), encode(spec.options)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def newest_step(slots: Sequence[Collection[FilledSlot]]) -> int:
    """The newest step of which any rank has a part. 0 if there is none."""
    return max((each.header.step for of_rank in slots for each in of_rank), default=0)
