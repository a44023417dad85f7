"""Map-style data sets over files: TFRecord, CSV and arrays, read at constant memory and without a framework."""

from __future__ import annotations

from typing import Any

from muster_trainer.contract import InputSpec
from muster_trainer.data.files.columns import Column, Part
from muster_trainer.data.files.fileset import FileSet
from muster_trainer.data.files.opening import FORMATS, open_files

__all__ = ["FORMATS", "Column", "FileSet", "Part", "open_files", "workers_for"]


def workers_for(data: Any, spec: InputSpec, *, automatic: int) -> int:
    """How many workers read `data`: as the job says, else `automatic` for files, and none for what is in memory."""
    if spec.workers is not None:
        return spec.workers
    return automatic if isinstance(data, FileSet) else 0
