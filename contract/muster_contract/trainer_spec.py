"""MUSTER_TRAINER: what a replica trains. The operator encodes a TrainerSpec, and the trainer decodes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from muster_contract.batch import LearningRateScaling
from muster_contract.errors import BadConfiguration
from muster_contract.options import Options
from muster_contract.strategy import StrategyRuntime
from muster_contract.wire import WireError, document, encode, parse, wire_field

VARIABLE = "MUSTER_TRAINER"
DEFAULT_GLOBAL_SIZE = 64
"""Samples per step if the job sets no batch size."""


@document
class BatchSpec:
    """How many samples make a step."""

    global_size: int = wire_field(default=DEFAULT_GLOBAL_SIZE, minimum=1, doc="Samples of a step, over all devices of the world.")
    accumulation_steps: int = wire_field(default=1, minimum=1, doc="Portions that each device computes its share in.")
    learning_rate_scaling: LearningRateScaling = wire_field(
        default=LearningRateScaling.NONE, doc="How the learning rate grows with the number of devices."
    )
    most_at_once: int | None = wire_field(
        default=None,
        minimum=1,
        doc="Largest portion of a process, in samples. Set for elastic jobs, so that a smaller world needs no more memory per process.",
    )


@document
class CheckpointSpec:
    """Where and when to save."""

    directory: str = wire_field(min_length=1, doc="The job's own folder or object prefix.")
    resume: str = wire_field(default="Auto", min_length=1, doc="`Auto`, `Never` or the path of a checkpoint.")
    every_steps: int | None = wire_field(default=None, minimum=1, doc="Steps between saves.")
    every_seconds: float | None = wire_field(default=None, minimum=0, doc="Seconds between saves.")
    keep: int = wire_field(default=3, minimum=1, doc="Commits to keep.")
    asynchronous: bool = wire_field(default=True, name="async", doc="Training continues while a checkpoint is written.")
    interval: Literal["Auto", "Continuous"] | None = wire_field(default=None, doc="How the trainer chooses the seconds between saves.")


@document
class MemorySpec:
    """Snapshots in the memory of the replicas."""

    size_mib: int | None = wire_field(
        default=None, minimum=1, doc="Most memory for snapshots in a replica, in MiB. Absent: half of what the replica may use."
    )
    every_steps: int | None = wire_field(
        default=None, minimum=1, doc="Steps between snapshots. Absent: the trainer chooses the number from the measured cost of snapshots."
    )
    copies: int = wire_field(default=1, minimum=0, doc="Other replicas that hold a copy of each part of a snapshot.")
    spares: bool = wire_field(default=False, doc="Whether the job has spares, which copy snapshots.")
    auto: bool = wire_field(
        default=False,
        doc="Whether the job does not mention snapshots. It then gets no notice about copies for which it has too few replicas.",
    )


@document
class InputSpec:
    """How samples are read. `docs/input.md` explains it."""

    workers: int | None = wire_field(
        default=None, minimum=0, doc="Reader processes or threads; 0 reads each batch when it is needed. Default: by data and framework."
    )
    prefetch: int | None = wire_field(default=None, minimum=1, doc="Batches that each worker reads ahead.")
    shard: Literal["Data", "File"] = wire_field(default="Data", doc="Whether devices share out samples or files.")
    cache: Path | None = wire_field(default=None, doc="A folder on the node's disk for copies of the data files.")


EntryPoint = Literal["task", "module", "script", "command"]
ENTRY_POINTS: tuple[EntryPoint, ...] = ("task", "module", "script", "command")


@document
class TrainerSpec:
    """What to train. Exactly one of task, module, script and command is set; otherwise the constructor raises WireError."""

    strategy: StrategyRuntime = wire_field(doc="The descriptor of the strategy.")
    batch: BatchSpec = wire_field(doc="How many samples make a step.")
    task: str | None = wire_field(default=None, min_length=1, doc="A bundled task.")
    module: str | None = wire_field(default=None, min_length=1, doc="A Python module of the user's with a task.")
    script: str | None = wire_field(default=None, min_length=1, doc="A Python program with its arguments, as a shell would split them.")
    command: tuple[str, ...] | None = wire_field(default=None, min_items=1, doc="Any program with its arguments.")
    preload: tuple[str, ...] = wire_field(default=(), doc="Further modules that the warm parent of a module or script imports.")
    config: Mapping[str, Any] = wire_field(default_factory=dict, doc="Settings of the training, as in the job.")
    input: InputSpec = wire_field(default=InputSpec(), doc="How samples are read.")
    options: Options = wire_field(default=Options(), doc="Options of the strategy.")
    communication: str = wire_field(default="Auto", min_length=1, doc="The library of the collectives.")
    checkpoint: CheckpointSpec | None = wire_field(default=None, doc="Absent if the job has no checkpoint storage.")
    memory: MemorySpec | None = wire_field(default=None, doc="Snapshots in memory, if the job names their size.")
    unsized_memory: MemorySpec | None = wire_field(
        default=None, doc="Snapshots in memory, if the job does not name their size. Older trainers ignore it, and keep none."
    )
    grace_seconds: float = wire_field(default=30.0, minimum=0, doc="Time to save after SIGTERM.")

    def __post_init__(self) -> None:
        named = [name for name in ENTRY_POINTS if getattr(self, name) is not None]
        if len(named) != 1:
            choice = " and ".join(named) or "none"
            raise WireError(f"exactly one of {', '.join(ENTRY_POINTS)} is needed, found {choice}")

    @property
    def entry_point(self) -> EntryPoint:
        return next(name for name in ENTRY_POINTS if getattr(self, name) is not None)

    @property
    def snapshots(self) -> MemorySpec | None:
        """None if no snapshots are kept in memory."""
        return self.memory or self.unsized_memory

    @property
    def is_bundled(self) -> bool:
        """Whether the bundled trainer trains, and not a program of the user."""
        return self.entry_point in ("task", "module")

    def program_of(self, role: str, index: int) -> str | None:
        """The path of the program that this replica runs in place of the training, or of the user's script or command. None: there is
        none."""
        runtime = self.strategy.roles.get(role)
        if runtime is None or index < runtime.first_index:
            return None
        return runtime.program if self.is_bundled or runtime.takes_over else None

    @classmethod
    def from_json(cls, text: str) -> TrainerSpec:
        """Parse `MUSTER_TRAINER`. Raises BadConfiguration that names the field."""
        try:
            return parse(cls, text, VARIABLE)
        except WireError as error:
            raise BadConfiguration(str(error)) from None

    def to_json(self) -> str:
        return json.dumps(encode(self), allow_nan=False)
