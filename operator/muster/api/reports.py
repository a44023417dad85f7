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


class Skipped(WireModel):
    path: str
    reason: str


class Resumed(WireModel):
    """What the processes found and where they went on."""

    found: int | None = None
    step: int = Field(default=0, ge=0)
    path: str | None = None
    skipped: list[Skipped] = Field(default_factory=list)


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


class ReportedProcess(WireModel):
    rank: int = 0
    pid: int | None = None
    state: str = "Starting"
    exit_code: int | None = None
    signal: str | None = None


class ReportedProgress(WireModel):
    step: int = Field(default=0, ge=0)
    total_steps: int | None = None
    epoch: int | None = None
    loss: str | None = None
    samples_per_second: float | None = None
    updated_at: float | None = None


class Evaluation(WireModel):
    step: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)


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
    last_words: LastWords | None = None


class Reply(WireModel):
    """The answer to a report."""

    attempt: int = Field(ge=0)
    interval_seconds: float = Field(default=1.0, gt=0)
