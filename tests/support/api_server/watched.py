"""Objects followed by a watch: what many tests at once look at without a list for each look."""

from __future__ import annotations

import http.client
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

from tests.support.api_server.api import Api, ApiError, Object, Watch


class Follower:
    """A thread that follows the objects at `path`. `query` limits them, such as `labelSelector`. `listed` gets all of them first and
    whenever the watch has ended, and `changed` each event after that."""

    def __init__(
        self, api: Api, path: str, *, listed: Callable[[list[Object]], None], changed: Callable[[str, Object], None], **query: str
    ) -> None:
        self._api, self._path, self._query = api, path, query
        self._listed, self._changed = listed, changed
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"watch of {path}", daemon=True)
        self._watch: Watch | None = None

    @property
    def works(self) -> bool:
        return self._thread.is_alive()

    @contextmanager
    def working(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            if self._watch:
                self._watch.close()
            self._thread.join(10)

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                listing = self._api.get(f"{self._path}?{urlencode(self._query)}")
                self._listed(listing["items"])
                self._watch = self._api.watch(self._path, listing["metadata"]["resourceVersion"], **self._query)
                for kind, changed in self._watch:
                    if kind == "ERROR":
                        break  # the version is too old: list again
                    self._changed(kind, changed)
            except (OSError, http.client.HTTPException, ApiError):  # the API server is away
                time.sleep(0.1)


class Watched:
    """The current objects of all namespaces at `path`."""

    def __init__(self, api: Api, path: str, **query: str) -> None:
        self._path = path
        self._objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._complete = threading.Event()
        self._follower = Follower(api, path, listed=self._list, changed=self._note, **query)

    def of(self, namespace: str) -> list[Object]:
        """Its objects, as of the last event."""
        assert self._follower.works, f"the watch of {self._path} has failed"
        with self._lock:
            return list(self._objects.get(namespace, {}).values())

    @contextmanager
    def working(self) -> Iterator[Watched]:
        with self._follower.working():
            assert self._complete.wait(60), f"no list of {self._path}"
            yield self

    def _list(self, items: list[Object]) -> None:
        with self._lock:
            self._objects.clear()
            for each in items:
                self._objects[each["metadata"]["namespace"]][each["metadata"]["uid"]] = each
        self._complete.set()

    def _note(self, kind: str, changed: Object) -> None:
        metadata = changed["metadata"]
        with self._lock:
            objects = self._objects[metadata["namespace"]]
            if kind == "DELETED":
                objects.pop(metadata["uid"], None)
            else:
                objects[metadata["uid"]] = changed
