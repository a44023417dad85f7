"""Map-style data sets over files: TFRecord, CSV, arrays, Parquet and Arrow. Reading takes constant memory and needs no framework."""

from __future__ import annotations

from muster_contract.trainer_spec import InputSpec
from muster_trainer.data.files.columns import Column, Part
from muster_trainer.data.files.fileset import FileSet
from muster_trainer.data.files.opening import FORMATS, open_files

__all__ = ["FORMATS", "Column", "FileSet", "Part", "open_files", "workers_for"]


def workers_for(data: object, spec: InputSpec, *, automatic: int) -> int:
    """The number of workers that read `data`: that of the job, else `automatic` for files and 0 for data in memory."""
    if spec.workers is not None:
        return spec.workers
    return automatic if isinstance(data, FileSet) else 0
