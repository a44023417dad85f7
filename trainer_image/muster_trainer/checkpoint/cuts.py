"""The cut of a pipeline, kept beside the checkpoints: measured again it may come out otherwise, and then a resumed world would draw other
random numbers in its layers, and go on with other losses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from muster_trainer.checkpoint import files
from muster_trainer.objects import Place


def kept_cut(directory: Place | None, shape: Mapping[str, Any], decide: Callable[[], list[int]]) -> tuple[list[int], bool]:
    """The cut that an earlier attempt kept in `directory` for a world of this `shape`, and True; else what `decide` says, which is kept.

    A file that was torn by a crash counts as none. Raises StorageUnavailable.
    """
    if directory is None:
        return decide(), False
    name = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12]
    path = directory / f"pipeline-{name}.json"
    with files.storage(path):
        if path.is_file():
            try:
                return [int(size) for size in json.loads(path.read_bytes())["layers"]], True
            except (ValueError, KeyError, TypeError):
                pass
        cut = decide()
        files.make_directory(directory)
        files.write_file(path, json.dumps({"layers": cut, "of": shape}).encode() + b"\n")
        return cut, False
