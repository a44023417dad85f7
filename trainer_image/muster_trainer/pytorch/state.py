"""Model and optimizer as one flat table of tensors, and its files.

The files are PyTorch's distributed checkpoint format, whose index lets another strategy or world read them resharded.
Keys are `model.<name>` and `optimizer.<parameter name>.<slot>`. Only tensors are stored, and the index is read by an
unpickler that knows tensor metadata alone: a checkpoint cannot run code. Hyperparameters are not stored: the job's
config gives them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from muster_trainer.checkpoint.files import storage_error
from muster_trainer.contract import BadConfiguration, StorageUnavailable

_METADATA = "torch.distributed.checkpoint.metadata"
_SAFE_CLASSES = {
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),  # how a torch.layout is pickled
}


def save(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes the table, durably and on all ranks together. Raises StorageUnavailable."""
    try:
        dcp.save(_table(model, optimizer), storage_writer=dcp.FileSystemWriter(directory, sync_files=True))
    except dcp.api.CheckpointException as error:
        raise _cause(error, directory) from error


def load(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Reads the table back. Raises BadConfiguration where it does not fit the model."""
    reader = _SafeReader(directory)
    stored = reader.read_metadata().state_dict_metadata
    table = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    try:
        dcp.load(table, storage_reader=reader)
        model.load_state_dict(_below(table, "model."))
        _load_optimizer(optimizer, model, _below(table, "optimizer."))
    except dcp.api.CheckpointException as error:
        raise _cause(error, directory) from error
    except (RuntimeError, KeyError, ValueError) as error:
        raise BadConfiguration(
            f"checkpoint {directory} does not fit the model or optimizer of this job: {' '.join(str(error).split())}. "
            "Put them back as they were, or write `resume: Never` or another checkpoint.name to start over"
        ) from error


def _table(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    table = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                table[f"optimizer.{name}.{slot}"] = torch.as_tensor(value)
    return table


def _load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, slots: dict[str, torch.Tensor]) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for position, parameter in enumerate(parameters):
        own = _below(slots, f"{names[parameter]}.")
        for slot, value in own.items():
            if value.dim() and value.shape != parameter.shape:
                raise ValueError(f"{names[parameter]}.{slot} has the shape {tuple(value.shape)}")
        if own:
            state[position] = own
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _below(table: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)}


def _cause(error: BaseException, directory: Path) -> StorageUnavailable:
    """The storage error of the first rank that failed."""
    rank, (cause, _) = min(error.failures.items())  # type: ignore[attr-defined]
    if isinstance(cause, OSError):
        return storage_error(directory, cause)
    return StorageUnavailable(f"checkpoint {directory}: rank {rank}: {type(cause).__name__}: {cause}")


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = None if "." in name else super().find_class(module, name)
        of_metadata = isinstance(found, type) and found.__module__ == module == _METADATA
        of_torch = module == "torch" and isinstance(found, torch.dtype | torch.layout | torch.memory_format)
        if of_metadata or of_torch or (module, name) in _SAFE_CLASSES:
            return found
        raise pickle.UnpicklingError(f"the index names {module}.{name}, which no checkpoint needs")


class _SafeReader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata: Metadata = _SafeUnpickler(file).load()
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
