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

from muster.control.cluster import Object
from muster.control.errors import ClusterError, GoneError
from muster.control.queue import Delays

ANYTHING = "0"
"""The version to begin at when none is known: all that there is, then what happens."""

log = logging.getLogger("muster.watch")


class Source(Protocol):
    """What a watch needs of the gateway."""

    def changes(self, path: str, version: str, *, labels: str = "") -> AsyncIterator[tuple[str, Object]]: ...


class Watch:
    """Calls `hear` with every change at `path` to objects with these `labels` (all, if empty), in the order in which they happened, and
    `lost` when some may have been missed."""

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        hear: Callable[[str, Object], None],
        lost: Callable[[], None],
        labels: str = "",
        delays: Delays = Delays(first=0.2, longest=5.0),
    ) -> None:
        self._source = source
        self._path = path
        self._hear = hear
        self._lost = lost
        self._labels = labels
        self._delays = delays
        self._version = ANYTHING
        self._failures = 0

    async def run(self) -> None:
        """Goes on from the last change it received whenever the stream ends or breaks. No error ends it: not even the deletion of the
        definition of what it watches."""
        while True:
            try:
                await self._follow()
            except GoneError:
                log.info("%s: too much was missed; beginning anew", self._path)
                self._version = ANYTHING
            except ClusterError as error:
                self._failures += 1
                log.warning("%s: the watch broke: %s", self._path, error)
            except Exception:
                self._failures += 1
                log.exception("%s: the watch broke", self._path)
            await asyncio.sleep(self._delays.after(max(1, self._failures)))  # a server that ends every stream at once is not to be pestered

    async def _follow(self) -> None:
        async for kind, obj in self._source.changes(self._path, self._version, labels=self._labels):
            if kind == "OPENED":
                if self._version == ANYTHING:
                    self._lost()  # what was deleted before this moment is in no event: only a list that begins now shows that it is gone
                continue
            if kind == "UNREADABLE":
                self._lost()  # the list says which object it is
                continue
            self._version = obj["metadata"]["resourceVersion"]
            self._failures = 0
            if kind != "BOOKMARK":
                self._tell(kind, obj)

    def _tell(self, kind: str, obj: Object) -> None:
        try:
            self._hear(kind, obj)
        except Exception:
            log.exception("%s: one change could not be taken in", self._path)  # and no other may suffer
            self._lost()
