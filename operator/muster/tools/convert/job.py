"""The TrainingJob that a conversion writes, field by field, and its notes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.api.constants import API_VERSION, KIND

ENTRYPOINT = "ENTRYPOINT"
"""Stands for the program of an image, which the file does not name."""


class ConvertError(ValueError):
    """A document that cannot be converted. The message names the field and says what to do."""


@dataclass(frozen=True)
class Note:
    """What the user should know about a field of the result (or, if it is lost, of the source)."""

    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.field else self.text


@dataclass
class Conversion:
    """One converted document. `origin` is its kind and name."""

    origin: str
    name: str = ""
    namespace: str | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, where: str, text: str, *, first: bool = False) -> None:
        """Adds a note once: `first` if the job cannot run before the user has done what it says."""
        if (note := Note(where, text)) not in self.notes:
            self.notes.insert(0 if first else len(self.notes), note)

    def document(self) -> dict[str, Any]:
        """The TrainingJob."""
        given = {"name": self.name, "namespace": self.namespace, "labels": self.labels}
        metadata = {key: value for key, value in given.items() if value}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": self.spec}

    def set(self, path: str, value: Any) -> None:
        """Sets a field below `spec`, such as `recovery.application.limit`."""
        *folders, last = path.split(".")
        place = self.spec
        for each in folders:
            place = place.setdefault(each, {})
        place[last] = value

    def unmapped(self, source: Mapping[str, Any], known: Sequence[str], where: str, reason: str = "") -> None:
        """Notes the fields of `source` that nothing has read."""
        for key in source:
            if key not in known:
                self.note(f"{where}.{key}".lstrip("."), reason or "has no counterpart, and is left out")


LIMITS = {
    "backoffLimit": "recovery.application.limit",
    "activeDeadlineSeconds": "activeDeadlineSeconds",
    "ttlSecondsAfterFinished": "ttlSecondsAfterFinished",
    "suspend": "suspend",
}
"""The fields below `spec` for what most kinds of jobs call by the same names."""


def write_limits(job: Conversion, source: Mapping[str, Any]) -> None:
    """Writes the fields of `LIMITS` that the source has."""
    for name, path in LIMITS.items():
        value = source.get(name)
        if value is not None and value is not False:  # 0 is a limit
            job.set(path, value)


def named(job: Conversion, name: str) -> None:
    """Gives the job this name, as far as a name of Kubernetes allows."""
    job.name = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "converted"
    if job.name != name:
        job.note("metadata.name", f"was {name}, which is no name of a TrainingJob")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """`value` as a mapping; absent is empty. Raises ConvertError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConvertError(f"{where}: must be a mapping, and is {type(value).__name__}")
    return value


def items(value: Any, where: str) -> list[Any]:
    """`value` as a list; absent is empty. Raises ConvertError."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConvertError(f"{where}: must be a list, and is {type(value).__name__}")
    return value


def mappings(value: Any, where: str) -> list[dict[str, Any]]:
    """`value` as a list of mappings; absent is empty. Raises ConvertError."""
    return [mapping(each, f"{where}[{index}]") for index, each in enumerate(items(value, where))]


def count(value: Any, where: str, default: int = 1) -> int:
    """`value` as a number of at least 0; absent is `default`. Raises ConvertError."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConvertError(f"{where}: must be a whole number, and is {value!r}")
    return value


def texts(value: Any, where: str) -> list[str]:
    """`value` as a list of texts; absent is empty. Raises ConvertError."""
    found = items(value, where)
    if any(isinstance(each, (dict, list)) or each is None for each in found):
        raise ConvertError(f"{where}: must be a list of texts")
    return [str(each) for each in found]
