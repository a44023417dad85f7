"""Problems of a job, as the command line and the reconciler show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One problem: the path of the field (`spec.roles.worker.replicas`), and a message that names what to write instead."""

    field: str
    message: str
    reason: str = "Invalid"
    """Reason of the condition Valid, if this is the first problem."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidJobError(ValueError):
    """A job that cannot be accepted, with all its problems."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
