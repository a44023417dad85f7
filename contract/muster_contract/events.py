"""Events: what a training process sends to its supervisor, one JSON line each, on the file descriptor MUSTER_EVENTS_FD.

Every line has `event` (the name), `time` (Unix seconds) and `rank`. The supervisor adds `role`, `index` and `attempt` and appends
it to `events.jsonl`. A program of the user may write events too. So a field of the wrong type or out of bounds is omitted, and an event
without a required field is ignored. A commit without its step still counts as a save.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_origin

from muster_contract.notices import Notice, NoticeReason, reason_of
from muster_contract.options import Cut
from muster_contract.wire import LARGEST_INT, FieldPlan, WireError, document, encode, fields_of, wire_field

MAX_ATTEMPT = 999_999_999
"""The largest attempt, because the fence of a checkpoint has nine digits for the attempt."""
MAX_NAME = 253
MAX_RANK = 2**31 - 1
MAX_SECONDS = 1e9
MAX_TIME = 1e11
MAX_PROCESSES = 64
"""Processes of one replica. `spec.roles.*.processesPerReplica` has the same limit."""
MAX_ENTRIES = 64
"""Entries of a mapping."""
MAX_SKIPPED = 100
"""Checkpoints that a `resumed` event names as damaged."""
WORD, LINE, MESSAGE = 64, 1024, 4096
"""Characters of a text; longer ones are cut."""
PROPERTY = 128

EVENTS: dict[str, type[Event]] = {}
"""The events by name. A measurement has `measurement` and its `what` as its name."""


def _step(*, doc: str, default: Any = dataclasses.MISSING) -> Any:
    return wire_field(default=default, minimum=0, maximum=LARGEST_INT, doc=doc)


def _seconds(*, doc: str, default: Any) -> Any:
    return wire_field(default=default, minimum=0, maximum=MAX_SECONDS, doc=doc)


def _text(*, doc: str, cut: int, default: Any, convert: Callable[[Any], object] | None = None) -> Any:
    return wire_field(default=default, cut=cut, doc=doc, convert=convert)


class Activity(StrEnum):
    """What a process does now. A program may report a word of its own instead, which has the time limit of `TRAINING`."""

    STARTING = "Starting"
    RESTORING = "Restoring"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    SAVING = "Saving"
    STOPPING = "Stopping"


class CommitReason(StrEnum):
    """Why a checkpoint was saved. A reason that is unknown to this version is read as `PERIODIC`."""

    PERIODIC = "Periodic"
    """`checkpoint.everySteps` or `everySeconds` was due."""
    STOP = "Stop"
    """The process was asked to stop."""
    FINAL = "Final"
    """The last step is done."""
    PEER_LOST = "PeerLost"
    """The rank lost its peers."""

    @property
    def is_urgent(self) -> bool:
        """Whether the process must end soon."""
        return self in (CommitReason.STOP, CommitReason.PEER_LOST)


def commit_reason_of(value: object) -> object:
    """The value of a `CommitReason`, for any text."""
    return value if not isinstance(value, str) or value in set(CommitReason) else CommitReason.PERIODIC.value


class ResumeSource(StrEnum):
    """What the training of an attempt resumed from."""

    STORAGE = "Storage"
    """A commit in the checkpoint storage."""
    MEMORY = "Memory"
    """A snapshot in the memory of the replicas."""
    SURVIVORS = "Survivors"
    """The state of processes that survived the attempt before."""


_T = TypeVar("_T", bound="Event")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """The supervisor fills in a time or rank that a program leaves out. In `events.jsonl` it adds the replica.

    An event with an unknown name, or without a required field, has only these fields.
    """

    event: ClassVar[str] = ""
    what: ClassVar[str | None] = None
    time: float = wire_field(default=0.0, minimum=0, maximum=MAX_TIME, doc="Unix seconds.")
    rank: int = wire_field(default=0, minimum=0, maximum=MAX_RANK, doc="Global rank of the process.")
    role: str = wire_field(default="", max_length=MAX_NAME, printable=True, doc="Role of the replica, in `events.jsonl`.")
    index: int = wire_field(default=0, minimum=0, maximum=MAX_RANK, doc="Index of the replica, in `events.jsonl`.")
    attempt: int = wire_field(default=0, minimum=0, maximum=MAX_ATTEMPT, doc="The attempt, in `events.jsonl`.")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire_field, dataclasses.field, _step, _seconds, _text))
def event(name: str, what: str | None = None) -> Callable[[type[_T]], type[_T]]:
    """Class decorator for the event `name`, or for the measurement of `what`."""

    def decorate(cls: type[_T]) -> type[_T]:
        cls.event, cls.what = name, what
        event_class = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        EVENTS[f"{name} {what}" if what else name] = event_class
        return event_class

    return decorate


def _written(value: object) -> object:
    """A number as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _shown(value: object) -> object:
    """A property of an environment as text, if it is a simple value or a list of such."""
    if isinstance(value, list):
        first = value[:MAX_ENTRIES]
        return value if any(isinstance(each, list | dict) for each in first) else ", ".join(map(str, first))
    return str(value) if value is None or isinstance(value, int | float) else value


def _shown_items(value: object) -> list[object]:
    return [_shown(each) for each in value] if isinstance(value, list | tuple) else [_shown(value)]


def _shown_values(value: object) -> object:
    return {name: _shown(each) for name, each in value.items()} if isinstance(value, dict) else {}


@event("fingerprint")
class Fingerprint(Event):
    """The software and the devices of a process. The supervisor compares them between the ranks of a world."""

    python: str | None = _text(default=None, cut=PROPERTY, doc="Version of Python.", convert=_shown)
    framework: str | None = _text(default=None, cut=PROPERTY, doc="Name of the framework.", convert=_shown)
    version: str | None = _text(default=None, cut=PROPERTY, doc="Version of the framework.", convert=_shown)
    devices: tuple[str, ...] = wire_field(
        default=(), max_items=MAX_ENTRIES, cut=PROPERTY, convert=_shown_items, doc="Names of the devices that the process computes on."
    )
    threads: str | None = _text(default=None, cut=PROPERTY, doc="Threads that the framework computes with.", convert=_shown)
    libraries: Mapping[str, str] = wire_field(
        default_factory=dict, max_items=MAX_ENTRIES, cut=PROPERTY, convert=_shown_values, doc="Versions of other libraries by name."
    )
    host: str | None = _text(default=None, cut=PROPERTY, doc="Name of the host.")
    device_seconds: float | None = _seconds(default=None, doc="Seconds until the GPU was ready. Absent on a CPU.")
    collectives_seconds: float | None = _seconds(default=None, doc="Seconds until NCCL had done the first collective. Absent without it.")

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the ranks of a world should have in common, as text by name. Each library is one."""
        texts = {"python": self.python, "framework": self.framework, "version": self.version}
        texts |= {"devices": ", ".join(self.devices) or None, "threads": self.threads}
        return {name: text for name, text in texts.items() if text is not None} | dict(self.libraries)


@event("phase")
class PhaseEvent(Event):
    """What the process does from now on."""

    phase: str = wire_field(
        min_length=1,
        cut=WORD,
        doc=f"The activity: {', '.join(f'`{each}`' for each in Activity)}, or a word of the program's own.",
    )


@document
class Skipped:
    """A checkpoint that does not verify."""

    path: str = _text(default="", cut=LINE, doc="The checkpoint.")
    reason: str = _text(default="", cut=LINE, doc="What is wrong with it.")


@event("handlesStop")
class HandlesStop(Event):
    """The process saves and ends after SIGTERM. So a request to stop goes to this process, and not to the launcher or shell above it."""

    pid: int = _step(doc="Id of the process.")


@event("registered")
class Registered(Event):
    """A program of the user has registered its state, or trains with a callback. So a process for its next attempt may be prepared."""


@event("resumed")
class Resumed(Event):
    """Where the training of an attempt begins. From rank 0."""

    step: int = _step(doc="Training continues after this step; 0 is the beginning.")
    committed_step: int | None = _step(default=None, doc="Step of the newest commit, whether it verifies or not.")
    path: str | None = _text(default=None, cut=LINE, doc="The checkpoint that was restored.")
    skipped: tuple[Skipped, ...] = wire_field(default=(), max_items=MAX_SKIPPED, doc="Newer checkpoints that do not verify.")
    source: ResumeSource | None = wire_field(default=None, doc="What was restored. Absent at the beginning, and if a program resumed.")
    survivors: int = wire_field(
        default=0, minimum=0, maximum=MAX_RANK, doc="Number of processes that have trained since an earlier attempt, with the same ids."
    )


@event("wholeState")
class WholeState(Event):
    """The rank saves the state after its last step if it loses its peers: alone, if it holds the whole state, or with other ranks. From
    every such rank."""

    waits: bool = wire_field(default=False, doc="Whether it then waits for the next attempt, and goes on in the same process.")


@event("waiting")
class Waiting(Event):
    """The rank has lost its peers, and waits for the world of the next attempt. Its process keeps the state."""

    step: int = _step(doc="Steps done.")


@event("survived")
class Survived(Event):
    """The rank trains on in the process of an earlier attempt. From every such rank, when it has joined the new world."""

    step: int = _step(doc="Steps done before, in the state that the process has kept.")
    pid: int | None = _step(default=None, doc="Id of the process.")


@event("step")
class Step(Event):
    """The end of a training step. From rank 0, and from a rank that has lost its peers and saves: its last step."""

    step: int = _step(doc="Steps done, from 1.")
    total_steps: int | None = _step(default=None, doc="Steps of the whole training.")
    epoch: int | None = _step(default=None, doc="Epochs done.")
    loss: str | None = _text(default=None, cut=WORD, convert=_written, doc="The loss, as text because it may be NaN.")
    loss_hex: str | None = _text(default=None, cut=WORD, doc="The loss as `float.hex` writes it, to compare runs bit for bit.")
    samples: int = _step(default=0, doc="Samples of the step, over all ranks.")
    seconds: float = _seconds(default=0.0, doc="Seconds that the step took.")
    input_seconds: float = _seconds(default=0.0, doc="Of `seconds`, the longest time that a rank waited for its samples.")
    remaining_seconds: float | None = _seconds(default=None, doc="Seconds to the end, if the program estimates them itself.")
    staleness: int | None = _step(default=None, doc="Parameter servers: updates by others since the parameters of this step were read.")

    @property
    def loss_value(self) -> float:
        """The loss as a number; NaN where it is none."""
        try:
            return float(self.loss or "nan")
        except ValueError:
            return math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save(Event):
    """A commit event, with or without a step. Without one it shows that the program saved and how long it took, but not which step."""

    path: str = _text(default="", cut=LINE, doc="Name of the checkpoint.")
    seconds: float | None = _seconds(default=None, doc="Seconds from the beginning of the save until all ranks have confirmed the commit.")
    blocked_seconds: float | None = _seconds(default=None, doc="Of `seconds`, those in which training waited. Absent: all of them.")
    interval_seconds: float | None = _seconds(default=None, doc="Seconds from one save to the next, if the trainer chose them.")
    bytes: int | None = _step(default=None, doc="Size of the checkpoint.")
    reason: CommitReason = wire_field(  # noqa: RUF009 (it makes a field)
        default=CommitReason.PERIODIC, convert=commit_reason_of, doc="Why it was saved."
    )

    @property
    def waited_seconds(self) -> float:
        """Seconds in which training waited for the save."""
        return (self.seconds or 0.0) if self.blocked_seconds is None else self.blocked_seconds


@event("commit")
class Commit(Save):
    """A checkpoint is complete. From rank 0, or from the rank that has saved alone."""

    step: int = _step(doc="Step of the checkpoint.")


@event("snapshot")
class Snapshot(Event):
    """A snapshot is complete in the memory of the replicas. From rank 0."""

    step: int = _step(doc="Step of the snapshot.")
    bytes: int = _step(default=0, doc="Memory that snapshots take in all replicas together.")
    copies: int = _step(default=0, doc="Replicas that hold each part of it, besides the first.")


@event("evaluation")
class Evaluation(Event):
    """Metrics of the model on the test set. From rank 0 or the evaluator."""

    step: int = _step(doc="The step after which the model was evaluated.")
    metrics: Mapping[str, float] = wire_field(max_items=MAX_ENTRIES, cut=WORD, minimum=-1e300, maximum=1e300, doc="Metrics by name.")
    seconds: float | None = _seconds(default=None, doc="Seconds that the evaluation took.")


@event("pace")
class Pace(Event):
    """How fast a rank works, about once a second. From every rank. The figures are medians over a window of steps."""

    step: int | None = _step(default=None, doc="Steps done.")
    seconds: float | None = _seconds(default=None, doc="Seconds of a step. Absent: the strategy cannot measure it.")
    own_seconds: float | None = _seconds(default=None, doc="Of `seconds`, those in which the rank worked and did not wait for others.")


@event("load")
class Load(Event):
    """What the processes of a replica take of its machine, from the supervisor: every second at first, and less often later. The figures
    are means since the last one. What cannot be measured is absent."""

    cpus: float = wire_field(default=0.0, minimum=0, maximum=MAX_RANK, doc="Processors that were busy with the replica.")
    memory_bytes: int = _step(
        default=0, doc="Memory of its processes without that of files. Pages that processes share count for each of them."
    )
    received_bytes_per_second: float | None = wire_field(
        default=None, minimum=0, maximum=MAX_TIME, doc="Bytes a second that its pod received. Absent in a local run."
    )
    sent_bytes_per_second: float | None = wire_field(
        default=None, minimum=0, maximum=MAX_TIME, doc="Bytes a second that its pod sent. Absent in a local run."
    )
    gpu_share: float | None = wire_field(
        default=None, minimum=0, maximum=1, doc="Share of the time in which its GPUs were busy, by `nvidia-smi`."
    )
    gpu_memory_bytes: int | None = _step(default=None, doc="Memory in use on its GPUs, by `nvidia-smi`.")


@event("notice")
class NoticeEvent(Event):
    """A message for the user."""

    message: str = wire_field(cut=LINE, doc="The message.")
    reason: NoticeReason = wire_field(default=NoticeReason.NOTICE, convert=reason_of, doc="Why it was sent.")

    @property
    def notice(self) -> Notice:
        return Notice(message=self.message, reason=self.reason)


@event("error")
class ErrorEvent(Event):
    """Why the process ends. From any rank."""

    message: str = _text(default="", cut=MESSAGE, doc="What is wrong, where, and what to do.")
    code: int | None = wire_field(default=None, minimum=0, maximum=255, doc="Exit code.")
    reason: str | None = _text(default=None, cut=WORD, doc="Name of the exit code.")
    step: int | None = _step(default=None, doc="Steps done.")
    failed_rank: int | None = wire_field(
        default=None, minimum=0, doc="Rank of the process that failed, if it is another one, which this process has started."
    )


@event("completed")
class Completed(Event):
    """The process has done all of its work, and ends with 0. From every rank of the bundled trainer.

    Without this event, an end with 0 is a failure, because code of the user has ended the process.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing(Event):
    """A median of measured durations."""

    median: float = _seconds(default=0.0, doc="Median in seconds.")
    low: float = _seconds(default=0.0, doc="Lower end of the 95 % interval of the median.")
    high: float = _seconds(default=0.0, doc="Upper end of that interval.")
    count: int = _step(default=0, doc="Durations measured.")


@event("measurement", "link")
class LinkMeasurement(Timing):
    """A TCP connection between the first and the last process."""

    bytes: int = _step(doc="Bytes sent; 0 is a round trip.")


@event("measurement", "collective")
class CollectiveMeasurement(Timing):
    """A collective operation at one size, until the last rank is done."""

    operation: str = _text(default="", cut=WORD, doc="Such as `AllReduce`.")
    variant: str = _text(default="", cut=WORD, doc="A variant of the operation.")
    own: bool = wire_field(default=False, doc="Whether the job's strategy uses this one.")
    bytes: int = _step(doc="Size of the data.")
    world: int = _step(doc="World size.")


@event("measurement", "step")
class StepMeasurement(Timing):
    """A training step of a rehearsal."""

    samples: int = _step(doc="Samples of a process.")
    processes: int = _step(doc="Processes that train side by side.")
    threads: int | None = _step(default=None, doc="Threads of a process.")
    gradient_bytes: int = _step(default=0, doc="Size of the gradients.")
    state_bytes: int = _step(default=0, doc="Size of the weights, the gradients and the optimizer's state.")
    peak_bytes: int = _step(default=0, doc="Largest memory of a process.")


@event("measurement", "training")
class TrainingMeasurement(Event):
    """All steps of a process but the first, in which frameworks prepare. From every rank when training ends."""

    steps: int = _step(default=0, doc="Steps counted.")
    seconds: float = _seconds(default=0.0, doc="Seconds of these steps.")
    own_seconds: float | None = _seconds(
        default=None, doc="Of `seconds`, those in which the rank worked. Absent: the strategy cannot measure it."
    )
    peak_bytes: int | None = _step(default=None, doc="Largest memory of the process.")


@document
class Stage:
    """A stage of a pipeline."""

    layers: tuple[str, ...] = wire_field(default=(), doc="Names of its layers.")
    seconds: float | None = _seconds(default=None, doc="Seconds of a micro-batch.")
    bytes: int | None = _step(default=None, doc="Memory of the stage.")


@event("measurement", "pipeline")
class PipelineMeasurement(Event):
    """How the layers of a pipeline are divided into stages. From rank 0."""

    cut: Cut | None = wire_field(default=None, doc="`options.pipeline.cut`.")
    inherited: bool = wire_field(default=False, doc="Whether it is the division of an earlier attempt.")
    stages: tuple[Stage, ...] = wire_field(default=(), doc="The stages.")
    layers: tuple[Mapping[str, Any], ...] = wire_field(default=(), doc="What each layer costs.")


EVENT_NAMES = frozenset(cls.event for cls in EVENTS.values())


def encode_event(event: Event) -> dict[str, Any]:
    """The JSON object of an event. It always has a time and a rank, for readers of `events.jsonl`."""
    kind = {"event": event.event} if event.what is None else {"event": event.event, "what": event.what}
    return kind | {"time": event.time, "rank": event.rank} | encode(event)


def decode_event(document: Mapping[str, Any]) -> Event:
    """The event in a JSON object, without the fields that do not fit."""
    name = document.get("event")
    if name == "measurement":
        name = f"{name} {document.get('what')}"
    cls: Any = EVENTS.get(name, Event) if isinstance(name, str) else Event
    bases = (base for base in cls.__mro__ if issubclass(base, Event))
    return next((event for base in bases if (event := _decoded(base, document)) is not None), Event())


def _decoded(cls: Any, document: Mapping[str, Any]) -> Event | None:
    """The event, or None if a required field is missing."""
    values = {}
    for field in fields_of(cls):
        value = document.get(field.wire_name)
        decoded = None if value is None else _fitting(field, value)
        if decoded is not None:
            values[field.name] = decoded
        elif field.required:
            return None
    event: Event = cls(**values)
    return event


def _fitting(field: FieldPlan, value: object) -> Any:
    """The value, or the valid entries of a list or mapping. None if no part is valid."""
    try:
        return field.decode(value)
    except WireError:
        pass
    origin = get_origin(field.hint)
    if origin is Mapping and isinstance(value, dict):
        entries = [{name: each} for name, each in sorted(value.items())]
        return {name: each for entry in _entries(field, entries) for name, each in entry.items()}
    if origin is tuple and isinstance(value, list):
        return tuple(each for entry in _entries(field, [[each] for each in value]) for each in entry)
    return None


def _entries(field: FieldPlan, entries: Sequence[object]) -> Iterator[Any]:
    """The entries that are valid, up to the number that the field allows."""
    count = 0
    for entry in entries:
        if count == field.limits.max_items:
            return
        with suppress(WireError):
            yield field.decode(entry)
            count += 1
