"""The cut of a pipeline, in a file beside the checkpoints.

A later attempt uses the cut of the first one, because a second measurement may give another cut. The layers would then draw other random
numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from muster_contract.wire import document, parse, wire_field
from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.objects import Location

_LARGEST = 16 << 20


@document
class _Cut:
    """The content of the file: the number of layers of each stage."""

    layers: tuple[int, ...] = wire_field(minimum=1, max_items=_LARGEST)


def saved_cut(
    directory: Location | None, shape: Mapping[str, Any], decide: Callable[[], list[int]], *, stages: int, layers: int
) -> tuple[list[int], bool]:
    """Returns the number of layers of each stage, and whether an earlier attempt chose them.

    If the file has a cut for a world of this `shape`, that cut is used. Otherwise the result of `decide` is written to the file. A file
    that is not a cut of `layers` into `stages` is ignored. Raises StorageUnavailable.
    """
    if directory is None:
        return decide(), False
    name = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12]
    path = directory / f"pipeline-{name}.json"
    with files.storage(path):
        with suppress(ValueError, FileNotFoundError):
            sizes = parse(_Cut, files.read(path, limit=_LARGEST)).layers
            if len(sizes) == stages and sum(sizes) == layers:
                return list(sizes), True
        cut = decide()
        files.make_directory(directory)
        files.write_file(path, json.dumps({"layers": cut, "of": shape}).encode() + b"\n")
        return cut, False
