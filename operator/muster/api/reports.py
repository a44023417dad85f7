"""What a supervisor says: its report over the coordination channel, and its last words. The wire side is `docs/architecture.md`.

Unknown fields are ignored, absent ones have defaults: old trainer images meet new operators and the other way round.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from muster.api.base import ApiModel


class WireModel(ApiModel):
    model_config = {**ApiModel.model_config, "extra": "ignore"}


class ReportedCommit(WireModel):
    step: int = Field(ge=0)
    path: str
    committed_at: float | None = None
    seconds: float | None = None
    blocked_seconds: float | None = None


class Skipped(WireModel):
    path: str
    reason: str


class Resumed(WireModel):
    """What the processes found and where they went on."""

    found: int | None = None
    step: int = Field(default=0, ge=0)
    path: str | None = None
    skipped: list[Skipped] = Field(default_factory=list)


class Evaluation(WireModel):
    step: int = 0
    updated_at: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)


class LastWords(WireModel):
    """The termination message: what ended a replica, in its supervisor's words."""

    code: int
    reason: str = ""
    message: str = ""
    rank: int | None = None
    step: int | None = None
    commit: ReportedCommit | None = None
    resumed_step: int | None = None
    attempt: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_at: float | None = None
    """When that process ended."""
    loss: str | None = None
    """That of `step`."""
    evaluation: Evaluation | None = None
    """The newest: who could tell nobody before it ended tells it here."""


STOPPED = "Stopped"
"""The state of a process to which somebody has sent SIGSTOP."""


class ReportedProcess(WireModel):
    rank: int = 0
    pid: int | None = None
    state: str = "Starting"
    """Running, Stopped or Exited."""
    exit_code: int | None = None
    signal: str | None = None


class Marks(WireModel):
    """When this attempt's processes were that far, Unix seconds."""

    restoring: float | None = None
    """They have formed a world."""
    resumed: float | None = None
    """The checkpoint is read."""
    stepped: float | None = None
    """The first step is done."""


class ReportedStack(WireModel):
    """Where a process of a world that hung stood, before it was ended."""

    attempt: int = Field(ge=0)
    rank: int = 0
    state: str = ""
    """The kernel's word: sleeping, running, disk-sleep, stopped (SIGSTOP), tracing-stop (a debugger)."""
    stack: str = ""
    """Of its main thread, the innermost frame first."""
    waits: bool = False
    """The innermost frame is the framework's own: most likely it waits for other ranks."""


class ReportedProgress(WireModel):
    step: int = Field(default=0, ge=0)
    total_steps: int | None = None
    epoch: int | None = None
    loss: str | None = None
    samples_per_second: float | None = None
    updated_at: float | None = None


class ReportedPace(WireModel):
    """How one rank gets on: medians of its last steps, once there were enough of them."""

    rank: int = 0
    step: int | None = None
    updated_at: float | None = None
    seconds: float | None = None
    """Of a whole step."""
    own_seconds: float | None = None
    """In which it worked, as against waiting for others."""


class Report(WireModel):
    """The state of one replica, as its supervisor posts it."""

    job: str
    job_uid: str = ""
    pod: str
    pod_uid: str = ""
    role: str
    index: int = Field(ge=0)
    attempt: int = Field(ge=0)
    sequence: int = Field(default=0, ge=0)
    processes: list[ReportedProcess] = Field(default_factory=list)
    phase: str | None = None
    progress: ReportedProgress | None = None
    checkpoint: ReportedCommit | None = None
    resumed: Resumed | None = None
    evaluation: Evaluation | None = None
    fingerprints: list[dict[str, Any]] = Field(default_factory=list)
    notices: list[str] = Field(default_factory=list)
    marks: Marks = Field(default_factory=Marks)
    saved_seconds: float = 0.0
    """How long the saves of this attempt have stopped the training."""
    idle_seconds: float | None = Field(default=None, ge=0, le=1e9)
    """Since its processes last did a step, a save or an evaluation, or were started: by a clock that does not jump."""
    ranks: list[ReportedPace] = Field(default_factory=list)
    stacks: list[ReportedStack] = Field(default_factory=list)
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
