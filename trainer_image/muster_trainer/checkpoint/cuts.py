"""The cut of a pipeline, kept beside the checkpoints: measured again it may come out otherwise, and then a resumed world would draw other
random numbers in its layers, and go on with other losses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from muster_trainer.checkpoint import documents, files
from muster_trainer.objects import Place

_LARGEST = 16 << 20


def kept_cut(
    directory: Place | None, shape: Mapping[str, Any], decide: Callable[[], list[int]], *, stages: int, layers: int
) -> tuple[list[int], bool]:
    """The cut that an earlier attempt kept in `directory` for a world of this `shape`, and True; else what `decide` says, which is kept.

    A file that is no cut of `layers` into `stages`, since a crash tore it or others wrote it, counts as none. Raises StorageUnavailable.
    """
    if directory is None:
        return decide(), False
    name = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12]
    path = directory / f"pipeline-{name}.json"
    with files.storage(path):
        with suppress(ValueError, FileNotFoundError):
            sizes = documents.listing(documents.parse(files.read(path, limit=_LARGEST)).get("layers"))
            kept = [documents.whole(size, least=1) for size in sizes]
            if len(kept) == stages and sum(kept) == layers:
                return kept, True
        cut = decide()
        files.make_directory(directory)
        files.write_file(path, json.dumps({"layers": cut, "of": shape}).encode() + b"\n")
        return cut, False
