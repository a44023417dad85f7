"""The current objects of one kind, from a watch: what many tests at once look at without a list for each look."""

from __future__ import annotations

import http.client
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from tests.support.api_server.api import Api, ApiError, Object, Watch


class Watched:
    """The objects of all namespaces at `path`. `query` limits them, such as `labelSelector`."""

    def __init__(self, api: Api, path: str, **query: str) -> None:
        self._api, self._path, self._query = api, path, query
        self._objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"watch of {path}", daemon=True)
        self._watch: Watch | None = None
        self._listed = threading.Event()

    def of(self, namespace: str) -> list[Object]:
        """Its objects, as of the last event."""
        assert self._thread.is_alive(), f"the watch of {self._path} has failed"
        with self._lock:
            return list(self._objects.get(namespace, {}).values())

    @contextmanager
    def working(self) -> Iterator[Watched]:
        self._thread.start()
        assert self._listed.wait(60), f"no list of {self._path}"
        try:
            yield self
        finally:
            self._stopped.set()
            if self._watch:
                self._watch.close()
            self._thread.join(10)

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                version = self._list()
                self._watch = self._api.watch(self._path, version, **self._query)
                for kind, changed in self._watch:
                    if kind == "ERROR":
                        break  # the version is too old: list again
                    self._note(kind, changed)
            except (OSError, http.client.HTTPException, ApiError):  # the API server is away
                time.sleep(0.2)

    def _list(self) -> str:
        listing: dict[str, Any] = self._api.request("GET", f"{self._path}?{self._selection()}")
        with self._lock:
            self._objects.clear()
            for each in listing["items"]:
                self._objects[each["metadata"]["namespace"]][each["metadata"]["uid"]] = each
        self._listed.set()
        return str(listing["metadata"]["resourceVersion"])

    def _note(self, kind: str, changed: Object) -> None:
        metadata = changed["metadata"]
        with self._lock:
            objects = self._objects[metadata["namespace"]]
            if kind == "DELETED":
                objects.pop(metadata["uid"], None)
            else:
                objects[metadata["uid"]] = changed

    def _selection(self) -> str:
        return urlencode(self._query)
