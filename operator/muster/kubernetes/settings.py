"""How kopf is set up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, repeat
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


class _Pauses:
    """Between the tries of a request, in seconds, without end. kopf's own are over after a minute of 503 (a load balancer whose API server
    is away): that ended the watch of jobs, and with it the operator.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 1.0, 2.0, 3.0), repeat(5.0))


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf watches and nothing else: no peering, no scanning for namespaces and definitions, no Events, no annotations, no finalizers."""
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Pauses()
    settings.watching.chunk_size = 500
    settings.persistence.progress_storage = _NoProgress()
    settings.persistence.diffbase_storage = _NoMemory()
    settings.process.ultimate_exiting_timeout = 25
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it has a line for every event
