"""Names of files and folders in a job's checkpoint storage, and the fences in them.

DIRECTORY/attempts/FENCE.json           an attempt has begun, and the step from which it resumed
DIRECTORY/step-STEP-FENCE/manifest.json  what a checkpoint holds
DIRECTORY/step-STEP-FENCE/COMMITTED      the checkpoint is complete: it holds the SHA-256 of the manifest
DIRECTORY/step-STEP-FENCE-rescue/        a checkpoint as well, which ranks have saved, alone or together, after they lost a peer
DIRECTORY/step-STEP-FENCE-rescue/CLAIM   the rank that created it writes this checkpoint, or commits what ranks have written together
DIRECTORY/step-STEP-FENCE-rescue/standing-RANK.json, part-RANK.json  notes of ranks that save together
DIRECTORY/step-STEP-FENCE-rescue-1/      the same, if the rank of the claim did not commit in time; the next one is -2
DIRECTORY/tensorboard/                   summaries
DIRECTORY/history/FENCE/                 what the replicas left of an attempt (muster_contract.history)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

ATTEMPTS = "attempts"
CHECKPOINTS = "step-*"
"""A pattern that matches every checkpoint folder."""
MANIFEST = "manifest.json"
MARKER = "COMMITTED"
CLAIM = "CLAIM"
TENSORBOARD = "tensorboard"
HISTORY = "history"

_TIME = "%Y%m%dT%H%M%SZ"
_FENCE = re.compile(r"([0-9]{8}T[0-9]{6}Z)-([0-9]{4,9})")
_RESCUE = "-rescue"
_CHECKPOINT = re.compile(f"step-([0-9]{{1,15}})-(.*?)(?:{_RESCUE}(?:-[0-9]{{1,9}})?)?")


@dataclass(frozen=True, order=True)
class Fence:
    """(creation time of the job in UTC, attempt). Fences compare, and as text they sort alike up to attempt 9999.

    A commit is void after an attempt with a higher fence has resumed from an earlier step.
    """

    created: datetime
    attempt: int

    def __str__(self) -> str:
        return f"{self.created.astimezone(UTC).strftime(_TIME)}-{self.attempt:04d}"

    @classmethod
    def parse(cls, text: str) -> Fence | None:
        """The fence in this text. None for other text."""
        match = _FENCE.fullmatch(text)
        if match is None:
            return None
        try:
            created = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        return cls(created, int(match[2]))


def checkpoint_name(step: int, fence: Fence) -> str:
    """The folder of the checkpoint that the attempt with this fence saves at `step`."""
    return f"step-{step:08d}-{fence}"


def rescue_name(step: int, fence: Fence, number: int = 0) -> str:
    """The folder of a rescue at `step` by the attempt with this fence. Each rank that saves alone has another `number`. Ranks that save
    together take the next `number` for each try."""
    return checkpoint_name(step, fence) + _RESCUE + (f"-{number}" if number else "")


def parse_checkpoint_name(name: str) -> tuple[int, Fence] | None:
    """The step and the fence in the name of a checkpoint folder. None for other names."""
    match = _CHECKPOINT.fullmatch(name)
    fence = Fence.parse(match[2]) if match else None
    return (int(match[1]), fence) if match and fence else None


def registration_name(fence: Fence) -> str:
    """The file in the folder ATTEMPTS that registers an attempt."""
    return f"{fence}.json"


def is_reserved(path: str) -> bool:
    """Whether a relative path below the job's folder belongs to checkpoints, registrations or the history."""
    first = path.partition("/")[0]
    return first in (ATTEMPTS, HISTORY) or first.startswith("step-")
