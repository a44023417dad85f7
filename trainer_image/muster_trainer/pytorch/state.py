"""Model and optimizer as one flat table of tensors, and its files.

The files are PyTorch's distributed checkpoint format, whose index lets another strategy or world read them resharded.
Keys are `model.<name>` and `optimizer.<parameter name>.<slot>`; numbers of Python, which some optimizers count with, are
`number.<parameter name>.<slot>`, and `group.<index>.<name>` where a parameter group counts. Only tensors are stored, and
the index is read by an unpickler that knows tensor metadata alone: a checkpoint cannot run code. Hyperparameters are not
stored: the job's config gives them. A rank writes and reads what it holds: a shard of a DTensor, the tensors of its stage, or nothing.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from muster_trainer.checkpoint.files import storage_error
from muster_trainer.contract import BadConfiguration, StorageUnavailable
from muster_trainer.engine import Part
from muster_trainer.pytorch.rates import RATES
from muster_trainer.pytorch.world import peers

Value = TypeVar("Value")
Groups = Sequence[Mapping[str, float]]

_INDEX = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_SAFE_CLASSES = {
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),  # how a torch.layout is pickled
}


class _Planner(dcp.DefaultSavePlanner):
    """Gives what this rank writes from copies, where there are some, and from the table itself elsewhere."""

    copies: Mapping[MetadataIndex, torch.Tensor] = {}

    def resolve_data(self, write_item: WriteItem) -> Any:
        return self.copies[write_item.index] if self.copies else super().resolve_data(write_item)


def snapshot(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    given: Groups = (),
    room: int,
    alone: bool = False,
) -> Part:
    """Shares the table out over all ranks, as dcp.save does, and copies what this rank is to write, if it is no more than `room` bytes.
    `alone`: this rank writes it all.
    `given` are the `numbers_of` the optimizer when it was made. Raises BadConfiguration where an optimizer keeps what cannot be stored.

    Each rank makes the plan of all, so that one collective is enough. Copies are plain memory: the next save has its own.
    """
    planner, writer = _Planner(), dcp.FileSystemWriter(directory)
    rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    planner.set_up_planner(_table(model, optimizer, given), is_coordinator=True)
    plans: list[Any] = [planner.create_local_plan()] * world
    if not alone:
        dist.all_gather_object(plans, plans[0])
    plans, metadata = planner.create_global_plan(plans)
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[rank])
    own = {item.index: planner.resolve_data(item) for item in plan.items}
    copied = sum(tensor.nbytes for tensor in own.values()) <= room
    if copied:
        planner.copies = {index: torch.empty_like(tensor, device="cpu").copy_(tensor) for index, tensor in own.items()}
        planner.state_dict = {}
    return Part(
        copied=copied,
        write=lambda: _write(writer, plan, planner, directory),
        finish=lambda told: _finish(writer, metadata, told),
    )


def _write(writer: dcp.FileSystemWriter, plan: SavePlan, planner: _Planner, directory: Path) -> tuple[list[str], Any]:
    """Raises StorageUnavailable: torch's writer hides the disk's error behind one of its own."""
    try:
        results = writer.write_data(plan, planner).value()
    except (RuntimeError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError):
            raise storage_error(directory, cause) from error
        raise
    planner.copies = {}
    places = [(one.index.fqn, one.index.offset, one.index.index, one.storage_data, one.size_in_bytes) for one in results]
    told = [[fqn, offset, index, info.relative_path, info.offset, info.length, size] for fqn, offset, index, info, size in places]
    return sorted({info.relative_path for *_, info, _ in places}), told


def _finish(writer: dcp.FileSystemWriter, metadata: Metadata, told: list[Any]) -> list[str]:
    """Writes the index, from what all ranks have told of their files."""
    results = [
        WriteResult(MetadataIndex(fqn, offset, index), size, _StorageInfo(path, start, length))
        for own in told
        for fqn, offset, index, path, start, length, size in own
    ]
    writer.finish(metadata, [results])
    return [_INDEX]


def load_alone(directory: Path, model: nn.Module) -> None:
    """Reads a whole model, by this process without the others of its world. Raises BadConfiguration where it does not fit."""
    load(directory, model, None, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, alone=True)


def load(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    alone: bool = False,
) -> None:
    """Reads this rank's part of the table back, whatever world wrote it. `shapes` are those of the whole model, by name.

    Raises BadConfiguration where the table does not fit the model: on all ranks, since all see the same index; PeerLost where one is gone.
    """
    reader = _SafeReader(directory)
    entries = reader.read_metadata().state_dict_metadata
    stored = {name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
    try:
        _check(_below(stored, "model."), shapes)
        slots = _empty_slots(model, stored, shapes) | _empty_numbers(model, stored) if optimizer else {}
        table = {f"model.{name}": tensor for name, tensor in model.state_dict().items()} | slots
        if alone:
            _read_alone(table, reader)
        else:
            with peers(dist.get_rank()):
                dcp.load(table, storage_reader=reader)
        if optimizer:
            _load_optimizer(optimizer, model, slots)
    except dcp.api.CheckpointException as error:
        raise _cause(error, directory) from error
    except (RuntimeError, KeyError, ValueError) as error:
        raise BadConfiguration(
            f"checkpoint {directory} does not fit the model or optimizer of this job: {' '.join(str(error).split())}. "
            "Put them back as they were, or write `resume: Never` or another checkpoint.name to start over"
        ) from error


def _read_alone(table: dict[str, torch.Tensor], reader: dcp.FileSystemReader) -> None:
    """`dcp.load` takes no_dist only since torch 2.7; its forerunner is there in all versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dcp.load_state_dict(table, storage_reader=reader, no_dist=True)


def _check(stored: Mapping[str, TensorStorageMetadata], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(stored.keys() | shapes.keys()):
        if name not in shapes:
            raise ValueError(f"it has {name}, which the model has not")
        if name not in stored:
            raise ValueError(f"it has no {name}, which the model has")
        if tuple(stored[name].size) != shapes[name]:
            raise ValueError(f"its {name} has the shape {tuple(stored[name].size)}, the model's {shapes[name]}")


def _empty_slots(
    model: nn.Module, stored: Mapping[str, TensorStorageMetadata], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """A place for each stored slot of this rank's parameters, laid out as the parameter where it has its shape."""
    slots: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        for slot, entry in _below(stored, prefix).items():
            if tuple(entry.size) == shapes[name]:
                slots[prefix + slot] = torch.zeros_like(parameter, dtype=entry.properties.dtype, requires_grad=False)
            elif len(entry.size) == 0 or not isinstance(parameter, DTensor):
                slots[prefix + slot] = torch.empty(entry.size, dtype=entry.properties.dtype)
            else:
                raise ValueError(_cut_up(name, slot))
    return slots


def _empty_numbers(model: nn.Module, stored: Mapping[str, TensorStorageMetadata]) -> dict[str, torch.Tensor]:
    own = tuple(f"number.{name}." for name, _ in model.named_parameters())
    found = {name: entry for name, entry in stored.items() if name.startswith((*own, "group."))}
    return {name: torch.empty((), dtype=entry.properties.dtype) for name, entry in found.items()}


def numbers_of(optimizer: torch.optim.Optimizer) -> Groups:
    """The numbers that each parameter group holds, by name: hyperparameters, and what an optimizer counts. The learning rate is not one
    of them: it is a function of the step."""
    return [
        {name: value for name, value in group.items() if isinstance(value, int | float) and name not in RATES}
        for group in optimizer.param_groups
    ]


def _table(model: nn.Module, optimizer: torch.optim.Optimizer | None, given: Groups) -> dict[str, torch.Tensor]:
    table = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if optimizer is None:
        return table
    _refuse_strangers(model, optimizer)
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                if isinstance(parameter, DTensor) and value.dim() and value.shape != parameter.shape:
                    raise BadConfiguration(_cut_up(name, slot))
                table[f"optimizer.{name}.{slot}"] = value
            elif isinstance(value, int | float):
                table[f"number.{name}.{slot}"] = _as_tensor(value)
            elif value is not None:
                kind = type(value).__name__
                raise BadConfiguration(
                    f"the optimizer {type(optimizer).__name__} keeps a {kind} as {name}.{slot}, and a checkpoint holds tensors and "
                    "numbers; take another optimizer"
                )
    for index, (numbers, before) in enumerate(zip(numbers_of(optimizer), given, strict=False)):
        counted = {name: value for name, value in numbers.items() if before.get(name) != value}
        table |= {f"group.{index}.{name}": _as_tensor(value) for name, value in counted.items()}
    return table


def _refuse_strangers(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own = set(model.parameters())
    strangers = [key for key, kept in optimizer.state.items() if kept and key not in own]
    if strangers:
        what = "a parameter that the model has not" if isinstance(strangers[0], torch.Tensor) else repr(strangers[0])
        raise BadConfiguration(
            f"the optimizer {type(optimizer).__name__} keeps state for {what}, and a checkpoint holds that of the model's parameters; "
            "take another optimizer"
        )


def _as_tensor(number: float) -> torch.Tensor:
    """With all of its digits."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _cut_up(name: str, slot: str) -> str:
    return (
        f"the optimizer's {name}.{slot} has not the shape of its parameter, which is cut up over the ranks; take another optimizer, or DDP"
    )


def _load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, slots: dict[str, torch.Tensor]) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors, numbers = _below(slots, "optimizer."), {name: value.item() for name, value in _below(slots, "number.").items()}
    own: dict[int, dict[str, Any]] = {
        position: {**_below(tensors, f"{names[parameter]}."), **_below(numbers, f"{names[parameter]}.")}
        for position, parameter in enumerate(parameters)
    }
    state = {position: found for position, found in own.items() if found}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for position, found in state.items():
        kept = optimizer.state[parameters[position]]
        for slot, value in found.items():
            if isinstance(value, torch.Tensor) and kept[slot].dtype != value.dtype:  # PyTorch makes it the parameter's
                kept[slot] = value.to(kept[slot].device)
    for name, value in _below(slots, "group.").items():
        index, _, counted = name.partition(".")
        if int(index) >= len(optimizer.param_groups):
            raise ValueError(f"it has a parameter group {index}, which the optimizer has not")
        optimizer.param_groups[int(index)][counted] = value.item()


def _below(table: Mapping[str, Value], prefix: str) -> dict[str, Value]:
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
        with (Path(self.path) / _INDEX).open("rb") as file:
            metadata: Metadata = _SafeUnpickler(file).load()
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
