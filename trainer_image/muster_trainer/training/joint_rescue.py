"""A rescue by several ranks: which step they save, and the notes by which they find out.

The ranks have lost a peer, so they have no collectives. They leave notes in the storage, in the rescue folder of their step. Each rank
decides by itself from all notes. Ranks are at most one step apart: nobody finishes a step before all ranks have sent their votes. A rank
that has sent them has the gradients of the step, so it can finish the step later, if another rank has finished it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from muster_contract.errors import PeerLost
from muster_contract.wire import WireError, document, encode, parse, wire_field
from muster_trainer.checkpoint import Store
from muster_trainer.checkpoint.objects import Location

TURN = 0.02
"""Seconds between two looks at the notes of the others."""
_LARGEST_DETAILS = 256 << 20
_Note = TypeVar("_Note")


@document
class Standing:
    """What a rank has after the loss of its peers. `skipped`: it has left out the update of its last step (`nanLoss: Skip`)."""

    step: int = wire_field(minimum=0)
    can_advance: bool
    skipped: bool = wire_field(default=False)


@document
class _WrittenPart:
    """The part of the state that a rank has written. `files` is an extract of `Manifest.files`. `details` are those of `Part.write`, as
    JSON, because they may have more values than a document."""

    files: Mapping[str, Mapping[str, Any]]
    details: str = wire_field(max_length=_LARGEST_DETAILS)


class Meeting:
    """The notes of the ranks that save a step together. `shards` has the shard of each rank of the world."""

    def __init__(self, store: Store, shards: Sequence[str]) -> None:
        self._store, self._shards = store, shards

    def choose(self, rank: int, own: Standing, *, until: float) -> tuple[int, list[int], bool]:
        """The step to save, the ranks that have it or can have it, and whether they leave out the update of that step.

        Raises PeerLost if the ranks that are there at `until` do not have all shards.
        """
        folder = self._store.rescue_directory(own.step)
        self._store.leave_note(folder, "standing", rank, json.dumps(encode(own)).encode())
        steps = range(max(0, own.step - 1), own.step + 2)
        while True:
            in_haste = time.monotonic() > until
            standings: dict[int, Standing] = {}
            for step in steps:
                noted = self._notes(self._store.rescue_directory(step), "standing", Standing)
                standings |= {other: each for other, each in noted.items() if each.step == step}
            chosen = choose_step(standings, self._shards, in_haste=in_haste)
            if chosen is not None:
                skip = any(each.skipped for each in standings.values() if each.step == chosen)
                return chosen, able(standings, chosen), skip
            if in_haste:
                raise PeerLost(described(standings, self._shards))
            time.sleep(TURN)

    def add_part(self, directory: Location, rank: int, part: list[Any]) -> None:
        """Makes a part known, which is complete in `directory`: its files, and the details of `Part.write`."""
        written, details = part
        note = _WrittenPart(written, json.dumps(details))
        self._store.leave_note(directory, "part", rank, json.dumps(encode(note)).encode())

    def parts(self, directory: Location) -> dict[int, list[Any]]:
        """The parts that are complete in `directory`, by rank."""
        return {rank: [note.files, json.loads(note.details)] for rank, note in self._notes(directory, "part", _WrittenPart).items()}

    def _notes(self, directory: Location, kind: str, cls: type[_Note]) -> dict[int, _Note]:
        notes: dict[int, _Note] = {}
        for rank, content in self._store.notes(directory, kind, limit=2 * _LARGEST_DETAILS).items():
            if rank in range(len(self._shards)):
                with suppress(WireError):  # it is being written
                    notes[rank] = parse(cls, content)
        return notes


def choose_step(standings: Mapping[int, Standing], shards: Sequence[str], *, in_haste: bool) -> int | None:
    """The newest step that the ranks with `standings` can save: they have all `shards` of it, or will have them once some have advanced.
    None if there is none, or if it is better to wait for more ranks. `in_haste`: there is no time to wait."""
    for step in sorted({each.step for each in standings.values()}, reverse=True):
        if holds_all(able(standings, step), shards) and (in_haste or not _is_in_doubt(standings, step, len(shards))):
            return step
        if not in_haste:
            return None  # a rank at the newest step has finished it, and other ranks may still come
    return None


def able(standings: Mapping[int, Standing], step: int) -> list[int]:
    """The ranks that have the state after `step`, or can have it."""
    return sorted(rank for rank, each in standings.items() if each.step == step or (each.can_advance and each.step == step - 1))


def holds_all(ranks: Collection[int], shards: Sequence[str]) -> bool:
    return {shards[rank] for rank in ranks} == set(shards)


def first_of_each(ranks: Collection[int], shards: Sequence[str]) -> list[int]:
    """The first of `ranks` that has each shard."""
    first: dict[str, int] = {}
    for rank in sorted(ranks):
        first.setdefault(shards[rank], rank)
    return list(first.values())


def described(ranks: Collection[int], shards: Sequence[str]) -> str:
    """Text about ranks that do not hold all shards."""
    held, whole = {shards[rank] for rank in ranks}, set(shards)
    return f"ranks {', '.join(map(str, sorted(ranks)))} are left, and they have {len(held)} of {len(whole)} shards of the state"


def _is_in_doubt(standings: Mapping[int, Standing], step: int, world: int) -> bool:
    """Whether a rank without a standing may have finished the step after `step`, the newest one. It has not if some rank has not sent its
    votes for that step, or if it is the only rank without a standing, because at least one rank is lost."""
    return all(each.can_advance and each.step == step for each in standings.values()) and len(standings) < world - 1
