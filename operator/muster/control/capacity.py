"""The capacity classes of the cluster's nodes, from the watch that also serves their notices."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping

from cachetools import FIFOCache

from muster.api.capacity import Classes
from muster.kubernetes.objects import Object

MOST_GONE = 1000
"""Nodes that are gone and whose class is remembered."""


def class_of(node: Object, classes: Classes) -> str | None:
    """The capacity class of the node: the first by name that it fits. None if it fits none."""
    metadata = node["metadata"]
    found = metadata.get("labels")
    labels = {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
    return next((name for name in sorted(classes) if classes[name].has(str(metadata["name"]), labels)), None)


class NodeClasses:
    """`changed` is called with the name of a node whose class has become known, changed or gone."""

    def __init__(self, classes: Classes, *, changed: Callable[[str], None]) -> None:
        self._classes = classes
        self._changed = changed
        self._of: dict[str, str] = {}
        self._gone: FIFOCache[str, str] = FIFOCache(MOST_GONE)
        self.are_known = False
        """Whether the watch has delivered a node."""

    @property
    def newest(self) -> Mapping[str, str]:
        """The class by node, of the nodes that have one. A node that has just gone is among them, because its pods are still there."""
        return ChainMap(self._of, self._gone)

    def node(self, kind: str, node: Object) -> None:
        """Takes a change of a node: ADDED, MODIFIED or DELETED."""
        self.are_known = True
        name = str(node["metadata"]["name"])
        before = self._of.pop(name, None)
        self._gone.pop(name, None)
        if kind == "DELETED" and before is not None:
            self._gone[name] = before
        after = None if kind == "DELETED" else class_of(node, self._classes)
        if after is not None:
            self._of[name] = after
        if after != before:
            self._changed(name)
