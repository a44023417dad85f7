"""What is wrong with a job, in a form that every door (CLI, CRD, reconciler) can show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the path of the field (`spec.roles.worker.replicas`) and what to write instead."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidJobError(ValueError):
    """A job that cannot be accepted, with every problem that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
