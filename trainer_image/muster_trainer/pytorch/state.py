"""Model and optimizer as one flat table of tensors, and its files.

PyTorch's distributed checkpoint plans which rank writes and reads what, so that another strategy or world reads the table resharded;
the files are those of `tensor_files`. Keys are `model.<name>` and `optimizer.<parameter name>.<slot>`; numbers of Python, which some
optimizers count with, are `number.<parameter name>.<slot>`, and `group.<index>.<name>` where a parameter group counts. Only tensors are
stored, as data: nothing is unpickled, so a checkpoint cannot run code. Hyperparameters are not stored: the job's config gives them. A
rank writes and reads what it holds: a shard of a DTensor, the tensors of its stage, or nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, WriteItem
from torch.distributed.tensor import DTensor
from torch.futures import Future

from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.manifest import read_listed, read_manifest
from muster_trainer.checkpoint.selection import refuse_other_version
from muster_trainer.contract import BadConfiguration, StorageUnavailable, TrainerError
from muster_trainer.engine import Part
from muster_trainer.pytorch import tensor_files
from muster_trainer.pytorch.rates import RATES
from muster_trainer.pytorch.tensor_files import DTYPES, INDEX, Chunk, Stored
from muster_trainer.pytorch.world import peers

Value = TypeVar("Value")
Groups = Sequence[Mapping[str, float]]


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
    `given` are the `numbers_of` the optimizer when it was made. Raises BadConfiguration where the table has what cannot be stored.

    Each rank makes the plan of all, so that one collective is enough. Copies are plain memory: the next save has its own.
    """
    table, planner = _table(model, optimizer, given), dcp.DefaultSavePlanner()
    _refuse_types(table)
    rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    planner.set_up_planner(table, is_coordinator=True)
    plans: list[Any] = [planner.create_local_plan()] * world
    if not alone:
        dist.all_gather_object(plans, plans[0])
    plan = planner.finish_plan(planner.create_global_plan(plans)[0][rank])
    own: dict[MetadataIndex, torch.Tensor] = {item.index: planner.resolve_data(item) for item in plan.items}
    copied = sum(tensor.nbytes for tensor in own.values()) <= room
    if copied:
        own = {index: torch.empty_like(tensor, device="cpu").copy_(tensor) for index, tensor in own.items()}
    return Part(
        copied=copied,
        write=lambda: _write(directory, f"rank-{rank:05d}.safetensors", plan, own),
        finish=lambda told: _finish(directory, told),
    )


def _write(directory: Path, name: str, plan: SavePlan, own: dict[MetadataIndex, torch.Tensor]) -> tuple[list[str], Any]:
    """Writes this rank's file, and gives the chunks that it holds. Lets go of the tensors. Raises StorageUnavailable."""
    if not plan.items:
        return [], []
    with files.storage(directory):
        starts = tensor_files.write(directory / name, {_key(item): own[item.index] for item in plan.items})
    own.clear()
    return [name], [_told(item, name, starts[_key(item)]) for item in plan.items]


def _key(item: WriteItem) -> str:
    """What this chunk is called in its file: as its tensor, if that is whole in it."""
    chunk = item.tensor_data.chunk
    return item.index.fqn if chunk.sizes == item.tensor_data.size else f"{item.index.fqn}@{','.join(map(str, chunk.offsets))}"


def _told(item: WriteItem, file: str, start: int) -> list[Any]:
    tensor, chunk = item.tensor_data, item.tensor_data.chunk
    return [
        item.index.fqn,
        tensor_files.name_of(tensor.properties.dtype),
        list(tensor.size),
        list(chunk.offsets),
        list(chunk.sizes),
        file,
        start,
    ]


def _finish(directory: Path, told: list[Any]) -> list[str]:
    """Writes the index, from the chunks that all ranks hold. Raises OSError."""
    tensors: dict[str, Stored] = {}
    for name, dtype, shape, offsets, sizes, file, start in (one for own in told for one in own):
        before = tensors[name].chunks if name in tensors else ()
        tensors[name] = Stored(DTYPES[dtype], tuple(shape), (*before, Chunk(tuple(offsets), tuple(sizes), file, start)))
    files.write_file(directory / INDEX, tensor_files.index_of(tensors))
    return [INDEX]


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

    Raises BadConfiguration where the table does not fit the model: on all ranks, since all see the same index; PeerLost where one is gone;
    StorageUnavailable.
    """
    stored = _index(directory)
    reader = _Reader(directory, stored)
    try:
        _check(_below(stored, "model."), shapes)
        slots = _empty_slots(model, stored, shapes) | _empty_numbers(model, stored) if optimizer else {}
        table = {f"model.{name}": tensor for name, tensor in model.state_dict().items()} | slots
        if alone:
            _read_alone(table, reader)
        else:
            with peers(dist.get_rank()):
                dcp.load(table, storage_reader=reader, planner=_Planner())
        if optimizer:
            _load_optimizer(optimizer, model, slots)
    except dcp.api.CheckpointException as error:
        raise _cause(error, directory) from error
    except (RuntimeError, KeyError, ValueError) as error:
        raise _misfit(error, directory) from error


def _index(directory: Path) -> dict[str, Stored]:
    """What the checkpoint holds. Its index is read once, and is the one that was committed.

    Raises BadConfiguration and StorageUnavailable.
    """
    try:
        with files.storage(directory):
            manifest = read_manifest(directory)
            refuse_other_version(manifest, directory)
            content = read_listed(directory, manifest, INDEX, limit=tensor_files.LARGEST_INDEX)
    except ValueError as error:
        raise StorageUnavailable(f"checkpoint {directory} is not as it was verified: {error}") from None
    try:
        return tensor_files.parse_index(content, {name: entry["bytes"] for name, entry in manifest.files.items()})
    except ValueError as error:
        raise BadConfiguration(
            f"checkpoint {directory} cannot be read by this version of Muster and PyTorch: {error}. Use those that wrote it, or write "
            "`resume: Never` or another checkpoint.name to start over"
        ) from None


def _read_alone(table: dict[str, torch.Tensor], reader: dcp.StorageReader) -> None:
    """`dcp.load` takes no_dist only since torch 2.7; its forerunner is there in all versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dcp.load_state_dict(table, storage_reader=reader, no_dist=True, planner=_Planner())


def _check(stored: Mapping[str, Stored], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(stored.keys() | shapes.keys()):
        if name not in shapes:
            raise ValueError(f"it has {name}, which the model has not")
        if name not in stored:
            raise ValueError(f"it has no {name}, which the model has")
        if stored[name].shape != shapes[name]:
            raise ValueError(f"its {name} has the shape {stored[name].shape}, the model's {shapes[name]}")


def _empty_slots(model: nn.Module, stored: Mapping[str, Stored], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """A place for each stored slot of this rank's parameters, laid out as the parameter where it has its shape."""
    slots: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        for slot, entry in _below(stored, prefix).items():
            if entry.shape == shapes[name]:
                slots[prefix + slot] = torch.zeros_like(parameter, dtype=entry.dtype, requires_grad=False)
            elif not entry.shape or not isinstance(parameter, DTensor):
                slots[prefix + slot] = torch.empty(entry.shape, dtype=entry.dtype)
            else:
                raise ValueError(_cut_up(name, slot))
    return slots


def _empty_numbers(model: nn.Module, stored: Mapping[str, Stored]) -> dict[str, torch.Tensor]:
    own = tuple(f"number.{name}." for name, _ in model.named_parameters())
    found = {name: entry for name, entry in stored.items() if name.startswith((*own, "group."))}
    return {name: torch.empty((), dtype=entry.dtype) for name, entry in found.items()}


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
        if counted == "params" or counted in RATES:
            raise ValueError(f"it has {counted} of a parameter group, which no optimizer counts with")
        optimizer.param_groups[int(index)][counted] = value.item()


def _below(table: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)}


def _refuse_types(table: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in table.items():
        try:
            tensor_files.name_of(tensor.dtype, tensor.layout)
        except ValueError as error:
            raise BadConfiguration(f"{name}: {error}") from None


def _cause(error: BaseException, directory: Path) -> TrainerError:
    """The error of the first rank that failed."""
    rank, (cause, _) = min(error.failures.items())  # type: ignore[attr-defined]
    if isinstance(cause, TrainerError):
        return cause
    if isinstance(cause, OSError):
        return files.storage_error(directory, cause)
    if type(cause) in (RuntimeError, KeyError, ValueError):
        return _misfit(cause, directory)
    return StorageUnavailable(f"checkpoint {directory}: rank {rank}: {type(cause).__name__}: {cause}")


def _misfit(error: Exception, directory: Path) -> BadConfiguration:
    return BadConfiguration(
        f"checkpoint {directory} does not fit the model or optimizer of this job: {' '.join(str(error).split())}. "
        "Put them back as they were, or write `resume: Never` or another checkpoint.name to start over"
    )


class _Planner(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: Any) -> NoReturn:
        raise ValueError(f"it has {read_item.storage_index.fqn}, which is not a tensor")


class _Reader(dcp.StorageReader):
    """Gives `dcp.load` what the index says, and reads the bytes that it asks for."""

    def __init__(self, directory: Path, stored: Mapping[str, Stored]) -> None:
        self.directory, self.stored = directory, stored
        self.chunks = {(name, chunk.offsets): chunk for name, one in stored.items() for chunk in one.chunks}

    def read_metadata(self) -> Metadata:
        entries: dict[str, Any] = {
            name: TensorStorageMetadata(
                properties=TensorProperties(dtype=one.dtype),
                size=torch.Size(one.shape),
                chunks=[ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.shape)) for chunk in one.chunks],
            )
            for name, one in self.stored.items()
        }
        return Metadata(state_dict_metadata=entries)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted = [(self.chunks[item.storage_index.fqn, tuple(item.storage_index.offset or ())], item) for item in plan.items]
        wanted.sort(key=lambda one: (one[0].file, one[0].start))
        for name, items in groupby(wanted, lambda one: one[0].file):
            with self._opened(name) as file:
                for chunk, item in items:
                    target = planner.resolve_tensor(item).detach()
                    stored = self.stored[item.storage_index.fqn]
                    tensor_files.read(file, stored.dtype, chunk, offsets=item.storage_offsets, target=target)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _opened(self, name: str) -> BinaryIO:
        try:
            return files.open_regular(self.directory / name)
        except ValueError as error:
            raise StorageUnavailable(f"checkpoint {self.directory} is not as it was verified: {error}") from None

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True
