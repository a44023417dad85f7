"""What strategies share that run a program of the user beside daemons: a common secret, and checks of what a job says."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from muster.api.problems import Problem
from muster.api.spec import TrainingJobSpec
from muster.strategies.base import ExtraObject

LONGEST_SECONDS = 86400


def secret_of(name: str, entry: str) -> ExtraObject:
    """A Secret with one random entry, by which the replicas of a job know each other. Without it, anybody who reaches a port of a daemon
    could run programs in the pods."""
    return ExtraObject(name, lambda: {entry: secrets.token_hex(32)}, kind="Secret")


def task_problems(spec: TrainingJobSpec, message: str) -> Iterator[Problem]:
    """A problem with this message for a job that names a task or module of the bundled trainer."""
    for name in ("task", "module"):
        if getattr(spec.trainer, name) is not None:
            yield Problem(f"spec.trainer.{name}", message)


def seconds_problems(spec: TrainingJobSpec, name: str) -> Iterator[Problem]:
    """A problem for a setting in `trainer.config` that is no number of seconds."""
    value = spec.trainer.config.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 1 <= value <= LONGEST_SECONDS):
        yield Problem(f"spec.trainer.config.{name}", f"write a number of seconds from 1 to {LONGEST_SECONDS}")


def text_of(value: object) -> str:
    """A setting of the job as text for a daemon, with `true` and `false` as in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)
