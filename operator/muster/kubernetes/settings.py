"""How kopf is set up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import kopf


class _Pauses:
    """Seconds between the tries of a request, without end. kopf's own are over after a minute of 503 (a load balancer whose API server is
    away): that ended what kopf asks for at its start, and with it the operator.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 1.0, 2.0, 3.0), repeat(5.0))


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf starts the operator, logs it in, and ends it. It watches nothing: no peers, no namespaces, no definitions, no jobs."""
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Pauses()
    settings.process.ultimate_exiting_timeout = 25
