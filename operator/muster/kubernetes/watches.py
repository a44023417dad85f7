"""The watches of what belongs to jobs: their pods and services. kopf watches the jobs themselves.

Of children there is many times more news than of jobs, and all of it is a change of a cache. kopf keeps a task, a queue and views of the
object for each pod, which cost the operator a third of its time.
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

    def changes(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]: ...


class ChildWatch:
    """Tells `hear` of every change at `path`, in the order in which they happened, and `lost` when some may have been missed."""

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        hear: Callable[[str, Object], None],
        lost: Callable[[], None],
        delays: Delays = Delays(first=0.2, longest=5.0),
    ) -> None:
        self._source = source
        self._path = path
        self._hear = hear
        self._lost = lost
        self._delays = delays
        self._version = ANYTHING
        self._failures = 0

    async def run(self) -> None:
        """Without end: goes on from the last change heard of whenever the stream ends or breaks."""
        while True:
            try:
                await self._follow()
            except GoneError:
                log.info("%s: too much was missed; beginning anew", self._path)
                self._version = ANYTHING
                self._lost()
            except ClusterError as error:
                self._failures += 1
                log.warning("%s: the watch broke: %s", self._path, error)
            await asyncio.sleep(self._delays.after(max(1, self._failures)))  # a server that ends every stream at once is not to be pestered

    async def _follow(self) -> None:
        async for kind, obj in self._source.changes(self._path, self._version):
            self._version = obj["metadata"]["resourceVersion"]
            self._failures = 0
            if kind != "BOOKMARK":
                self._tell(kind, obj)

    def _tell(self, kind: str, obj: Object) -> None:
        try:
            self._hear(kind, obj)
        except Exception:
            log.exception("%s: one change could not be taken in", self._path)  # and no other may suffer
