"""A rescue: one rank saves the whole state by itself, because its peers are gone. The bundled trainer and programs of users share it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from muster_contract.environment import RESCUE_SECONDS
from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.objects import Location
from muster_trainer.checkpoint.store import Store

SHORTEST_CLAIM = 1.0
"""Seconds. The least time that a rank gets to save a step that it has claimed, before another rank saves that step as well."""

Part = TypeVar("Part")


def rescue(
    store: Store,
    step: int,
    *,
    seconds: float,
    stage: Callable[[Path], Part | None],
    commit: Callable[[Location, Path, Part], None],
) -> Location | None:
    """Saves `step` in a folder of its own, unless another rank does. Returns the commit; None if there is none.

    If another rank has claimed the step, waits for its commit. That rank may be lost too, so this one then saves, in a folder of its
    own: both may write at once. It does not do so if `RESCUE_SECONDS` are too short for that.

    Args:
        seconds: the time that a save takes.
        stage: prepares the state in a staging folder. Returns None if this rank does not have the whole state.
        commit: writes and commits a state to the folder that this rank has claimed.
    """
    began = time.monotonic()
    claim_seconds = max(SHORTEST_CLAIM, 2 * seconds)
    for number in count():
        directory = store.rescue_directory(step, number)
        staging = files.staging_folder(directory)
        try:
            part = stage(staging)
            if part is None:
                return None
            if store.begin_rescue(directory):
                try:
                    commit(directory, staging, part)
                finally:
                    store.abandon(directory)  # a commit stays
                return directory
        finally:
            files.remove_staging(staging, directory)
        if time.monotonic() + claim_seconds + seconds > began + RESCUE_SECONDS:
            return None
        if store.await_rescue(directory, seconds=claim_seconds):
            return directory
    return None
