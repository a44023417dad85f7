"""What a supervisor reports: its report over the coordination channel, and its last words. docs/architecture.md describes the wire format.

Unknown fields are ignored and absent fields have defaults, because old trainer images meet new operators and the other way round.

What a training process writes is not trusted. Every number and every list has bounds, and a report that exceeds them is refused. Text is
cut, and its control characters are escaped (`muster.api.text`), so that the status, Events and logs never hold raw ones.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, FailFast, Field

from muster.api.base import ApiModel
from muster.api.text import printable

LARGEST_STEP = 2**53
"""What every JSON reader keeps exact."""
LARGEST_ATTEMPT = 999_999_999
"""The fence in a checkpoint folder has nine digits for the attempt."""
MOST_PROCESSES = 64
"""Of one replica: `spec.roles.*.processesPerReplica` allows no more."""
MOST_ENTRIES = 64
"""Of a mapping."""


def _cut(most: int, *, keep: str = "") -> AfterValidator:
    return AfterValidator(lambda text: printable(text[:most], keep=keep)[:most])


def _shown(value: object) -> str:
    """A property of an environment as text. Lists (of devices) become one text."""
    return ", ".join(map(str, value[:MOST_PROCESSES])) if isinstance(value, list) else str(value)


def _few(value: object) -> object:
    """Refuses a large mapping before its entries are validated: `max_length` counts them only afterwards, at great cost."""
    if isinstance(value, dict) and len(value) > MOST_ENTRIES:
        raise ValueError(f"it has {len(value)} entries, and {MOST_ENTRIES} are allowed")
    return value


def _mapping(value: object) -> object:
    return _few(value) if isinstance(value, dict) else {}


Step = Annotated[int, Field(ge=0, le=LARGEST_STEP)]
Attempt = Annotated[int, Field(ge=0, le=LARGEST_ATTEMPT)]
Rank = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Also for other small numbers, such as an index or a process id."""
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
UnixSeconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Figure = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=253), AfterValidator(printable)]
Word = Annotated[str, _cut(64)]
Line = Annotated[str, _cut(1024)]
Message = Annotated[str, _cut(4096)]
Stack = Annotated[str, _cut(1024, keep="\n")]
Shown = Annotated[str, BeforeValidator(_shown), _cut(128)]


class WireModel(ApiModel):
    model_config = {**ApiModel.model_config, "extra": "ignore"}


class ReportedCommit(WireModel):
    step: Step
    path: Line
    committed_at: UnixSeconds | None = None
    seconds: Seconds | None = None
    blocked_seconds: Seconds | None = None


class Skipped(WireModel):
    path: Line
    reason: Line


class Resumed(WireModel):
    """Which commit the processes found, and the step they resumed from."""

    found: Step | None = None
    step: Step = 0
    path: Line | None = None
    skipped: Annotated[list[Skipped], FailFast(), Field(max_length=100)] = Field(default_factory=list)


class Evaluation(WireModel):
    step: Step = 0
    updated_at: UnixSeconds | None = None
    metrics: Annotated[dict[Word, Figure], BeforeValidator(_few)] = Field(default_factory=dict)


class LastWords(WireModel):
    """The termination message: what ended a replica, as its supervisor writes it."""

    code: int = Field(ge=0, le=255)
    reason: Word = ""
    message: Message = ""
    rank: Rank | None = None
    step: Step | None = None
    commit: ReportedCommit | None = None
    resumed_step: Step | None = None
    attempt: Attempt | None = None
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    signal: Word | None = None
    ended_at: UnixSeconds | None = None
    """When that process ended."""
    loss: Word | None = None
    """That of `step`."""
    evaluation: Evaluation | None = None
    """The newest one: a replica that ends before it can report it leaves it here."""


STOPPED = "Stopped"
"""The state of a process that got SIGSTOP."""


class ReportedProcess(WireModel):
    rank: Rank = 0
    pid: Rank | None = None
    state: Word = "Starting"
    """Running, Stopped or Exited."""


class Marks(WireModel):
    """When this attempt's processes were that far, Unix seconds."""

    restoring: UnixSeconds | None = None
    """They have formed a world."""
    resumed: UnixSeconds | None = None
    """The checkpoint is read."""
    stepped: UnixSeconds | None = None
    """The first step is done."""


class ReportedStack(WireModel):
    """Where a process of a world that hung stood, before it was ended."""

    attempt: Attempt
    rank: Rank = 0
    state: Word = ""
    """The kernel's word: sleeping, running, disk-sleep, stopped (SIGSTOP), tracing-stop (a debugger)."""
    stack: Stack = ""
    """Of its main thread, the innermost frame first."""
    waits: bool = False
    """The innermost frame is the framework's own: most likely it waits for other ranks."""


class ReportedProgress(WireModel):
    step: Step = 0
    total_steps: Step | None = None
    epoch: Step | None = None
    loss: Word | None = None
    samples_per_second: Figure | None = None
    updated_at: UnixSeconds | None = None


class ReportedPace(WireModel):
    """How one rank gets on: medians of its last steps, once there were enough of them."""

    rank: Rank = 0
    step: Step | None = None
    updated_at: UnixSeconds | None = None
    seconds: Seconds | None = None
    """Of a whole step."""
    own_seconds: Seconds | None = None
    """In which it worked, as against waiting for others."""


class Fingerprint(WireModel):
    """The software and the devices of one process."""

    rank: Rank | None = None
    python: Shown | None = None
    framework: Shown | None = None
    version: Shown | None = None
    devices: Shown | None = None
    threads: Shown | None = None
    libraries: Annotated[dict[Word, Shown], BeforeValidator(_mapping)] = Field(default_factory=dict)


class Report(WireModel):
    """The state of one replica, as its supervisor posts it."""

    job: Name
    pod: Name
    pod_uid: Name = ""
    role: Name
    index: Rank
    attempt: Attempt
    sequence: Step = 0
    processes: Annotated[list[ReportedProcess], FailFast(), Field(max_length=MOST_PROCESSES)] = Field(default_factory=list)
    phase: Word | None = None
    progress: ReportedProgress | None = None
    checkpoint: ReportedCommit | None = None
    resumed: Resumed | None = None
    evaluation: Evaluation | None = None
    fingerprints: Annotated[list[Fingerprint], FailFast(), Field(max_length=MOST_PROCESSES)] = Field(default_factory=list)
    notices: Annotated[list[Line], FailFast(), Field(max_length=50)] = Field(default_factory=list)
    marks: Marks = Field(default_factory=Marks)
    saved_seconds: Seconds = 0.0
    """How long the saves of this attempt have stopped the training."""
    idle_seconds: Seconds | None = None
    """Since its processes last did a step, a save or an evaluation, or were started: by a clock that does not jump."""
    ranks: Annotated[list[ReportedPace], FailFast(), Field(max_length=MOST_PROCESSES)] = Field(default_factory=list)
    stacks: Annotated[list[ReportedStack], FailFast(), Field(max_length=MOST_PROCESSES)] = Field(default_factory=list)
    last_words: LastWords | None = None
    """Of `attempt`, or, while the supervisor waits for the world of that, of the one before."""
    waiting: bool = False
    """All processes are reaped, and it waits: for the world of `attempt`, or after its last words for the next attempt."""
    in_place: bool = False
    """It can start the processes of another attempt in the same pod."""


class Reply(WireModel):
    """The answer to a report: the attempt that counts, and what a supervisor that can restart in place does about it.

    One of an older attempt ends its processes, after `grace_seconds` for saving, reaps them and says so (`waiting`); `dump`: and says
    first where they stand. Once all have, `world` is the environment to start those of `attempt` with. `end`: no attempt follows, so the
    replica ends its processes, if any still run, and itself. `succeeded`: that is because the job has succeeded.
    """

    attempt: int = Field(ge=0)
    interval_seconds: float = Field(default=1.0, gt=0)
    grace_seconds: float = Field(default=0.0, ge=0)
    dump: bool = False
    world: dict[str, str] | None = None
    end: bool = False
    succeeded: bool = False
