"""The watches of jobs, and of their pods and services.

kopf does not watch them. Its watch ends, and the operator with it, when one object is nested too deeply for Python's JSON parser, or
when the API server answers with an error that it does not expect. For each pod it keeps a task, a queue and views of the object as well,
which cost the operator a third of its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from muster.kubernetes.api_paths import ApiPath
from muster.kubernetes.backoff import Delays
from muster.kubernetes.errors import ClusterError, ExpiredError
from muster.kubernetes.objects import Object

ANYTHING = "0"
"""The resourceVersion for a new watch: first all existing objects, then the changes."""

log = logging.getLogger("muster.watch")


class Source(Protocol):
    """The part of the gateway that a watch uses."""

    def changes(self, path: ApiPath, version: str, *, labels: str = "") -> AsyncIterator[tuple[str, Object]]: ...


class Watch:
    """Calls `on_change` with every change to objects at `path`, in order, and `on_gap` when changes may have been missed. `labels` selects
    objects; empty selects all."""

    def __init__(
        self,
        source: Source,
        path: ApiPath,
        *,
        on_change: Callable[[str, Object], None],
        on_gap: Callable[[], None],
        labels: str = "",
        delays: Delays = Delays(first=0.2, longest=5.0),
    ) -> None:
        self._source = source
        self._path = path
        self._on_change = on_change
        self._on_gap = on_gap
        self._labels = labels
        self._delays = delays
        self._version = ANYTHING
        self._failures = 0
        self._error = ""  # since the last change; repeated errors log at debug level

    async def run(self) -> None:
        """Watches until it is cancelled. Continues from the last change whenever the stream ends or breaks. No error ends it, not even the
        deletion of the CustomResourceDefinition."""
        while True:
            least = 0.0
            try:
                await self._follow()
            except ExpiredError:
                log.info("%s: the resourceVersion has expired; starting over", self._path)
                self._version = ANYTHING
            except ClusterError as error:
                self._failures += 1
                least = error.retry_seconds
                log.log(logging.DEBUG if str(error) == self._error else logging.WARNING, "%s: the watch broke: %s", self._path, error)
                self._error = str(error)
            except Exception:
                self._failures += 1
                log.exception("%s: the watch broke", self._path)
            await asyncio.sleep(max(least, self._delays.after(max(1, self._failures))))  # the server may end every stream at once

    async def _follow(self) -> None:
        async for kind, obj in self._source.changes(self._path, self._version, labels=self._labels):
            if kind == "OPENED":
                if self._version == ANYTHING:
                    self._on_gap()  # the watch does not report earlier deletions; only a list from now on shows them
                continue
            if kind == "UNREADABLE":
                self._on_gap()  # a list shows which object it is
                continue
            self._version = obj["metadata"]["resourceVersion"]
            self._failures, self._error = 0, ""
            if kind != "BOOKMARK":
                self._deliver(kind, obj)

    def _deliver(self, kind: str, obj: Object) -> None:
        try:
            self._on_change(kind, obj)
        except Exception:
            log.exception("%s: one change could not be processed", self._path)
            self._on_gap()
