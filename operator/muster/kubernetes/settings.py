"""How kopf is set up."""

from __future__ import annotations

import logging
from typing import Any

import kopf


class _NoMemory(kopf.DiffBaseStorage):
    """What an object looked like before. Nobody asks; kopf's own would copy every job several times for each of its events."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """How far handlers have come that span several events. There are none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf watches and nothing else: no peering, no scanning for namespaces and definitions, no Events, no annotations, no finalizers."""
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.chunk_size = 500
    settings.persistence.progress_storage = _NoProgress()
    settings.persistence.diffbase_storage = _NoMemory()
    settings.process.ultimate_exiting_timeout = 25
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it has a line for every event
