"""Model and optimizer as one flat table of tensors, in the files of `muster_trainer.training.tensor_table`.

Keys are `model.<name>` and `optimizer.<parameter name>.<slot>`. Counters of an optimizer that are Python numbers have the keys
`number.<parameter name>.<slot>`, or `group.<index>.<name>` if they belong to a parameter group. Nothing is unpickled, because only
tensors are stored, so a checkpoint cannot run code. Hyperparameters are not stored, because they are in the job's config. A rank writes
and reads the parts that it holds: a shard of a DTensor, the tensors of its stage, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from muster_contract.errors import BadConfiguration
from muster_trainer.checkpoint.tensor_files import Stored
from muster_trainer.pytorch import tensor_files
from muster_trainer.pytorch.compat import local_box
from muster_trainer.pytorch.gradients import local
from muster_trainer.pytorch.optimizers import RATES
from muster_trainer.pytorch.tensor_files import DTYPES
from muster_trainer.training import tensor_table
from muster_trainer.training.engine import Part
from muster_trainer.training.tensor_table import Box

Value = TypeVar("Value")
Groups = Sequence[Mapping[str, float]]


def part_to_save(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    initial_numbers: Groups = (),
    room: int,
    alone_as: int | None = None,
) -> Part:
    """Divides the table among all ranks, and returns this rank's part. Copies the part if it takes at most `room` bytes.

    Rank `alone_as` writes all that it holds, without the other ranks. `initial_numbers` is the result of `numbers_of` for the new
    optimizer. Raises BadConfiguration if a value in the table cannot be stored.
    """
    mine = local_table(model, optimizer, initial_numbers)
    mine = {box: tensor for box, tensor in mine.items() if box.nbytes or box.sizes == box.shape}  # a shard may be empty
    own, rank = mine, alone_as
    if rank is None:
        rank = dist.get_rank()
        of_all: list[Any] = [list(mine)] * dist.get_world_size()
        dist.all_gather_object(of_all, list(mine))
        own = {box: mine[box] for box in tensor_table.share_out(of_all)[rank]}
    copied = sum(box.nbytes for box in own) <= room
    if copied:
        own = {box: torch.empty_like(tensor, device="cpu").copy_(tensor) for box, tensor in own.items()}
    return tensor_table.part(directory, tensor_table.file_of(rank), own, tensor_files.bytes_on_host, copied=copied)


def local_table(model: nn.Module, optimizer: torch.optim.Optimizer | None, initial_numbers: Groups) -> dict[Box, torch.Tensor]:
    """The boxes of the table that this rank holds, with their tensors. Raises BadConfiguration if a value cannot be stored."""
    table = _table(model, optimizer, initial_numbers)
    return {_box(name, tensor): local(tensor.detach()) for name, tensor in table.items()}


@torch.no_grad()
def restore(model: nn.Module, optimizer: torch.optim.Optimizer | None, table: Mapping[Box, torch.Tensor]) -> None:
    """Sets this rank's part of the table to `table`, which is the result of `local_table` in a world of the same shape.

    Raises ValueError if it does not fit.
    """
    tensors, complete = room(model, optimizer, table)
    for box, tensor in tensors.items():
        tensor.copy_(table[box])
    complete()


def room(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, boxes: Iterable[Box]
) -> tuple[dict[Box, torch.Tensor], Callable[[], None]]:
    """The tensors of the model and the optimizer for a table with these boxes, and a function to call when they are written. So no tensor
    is in memory twice. Raises ValueError if the table does not fit."""
    own = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    by_name = {box.name: box for box in boxes}
    stored = {name: Stored(box.dtype, box.shape, ()) for name, box in by_name.items()}
    tensor_table.check_names_and_shapes(_below(stored, "model."), shapes)
    slots = _empty_slots(model, stored, shapes) | _empty_numbers(model, stored)
    tensors = {}
    for name, tensor in ({f"model.{name}": tensor for name, tensor in own.items()} | slots).items():
        box = by_name[name]
        if local_box(tensor) != (box.offsets, box.sizes):
            raise ValueError(f"{name} is another part of its tensor")
        tensors[box] = local(tensor)

    def complete() -> None:
        if optimizer:
            _load_optimizer(optimizer, model, slots)

    return tensors, complete


def _box(name: str, tensor: torch.Tensor) -> Box:
    try:
        dtype = tensor_files.name_of(tensor.dtype, tensor.layout)
    except ValueError as error:
        raise BadConfiguration(f"{name}: {error}") from None
    return Box(name, dtype, tuple(tensor.shape), *local_box(tensor))


@torch.no_grad()
def load(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> None:
    """Reads this rank's part of the table from a checkpoint. Any world may have written it.

    `shapes` has the shape of each parameter of the whole model, by name. It is None if this rank has the whole model. Raises
    BadConfiguration if the table does not fit the model, and StorageUnavailable.
    """
    stored = tensor_files.read_index(directory)
    own = model.state_dict()
    shapes = shapes or {name: tuple(tensor.shape) for name, tensor in own.items()}
    try:
        tensor_table.check_names_and_shapes(_below(stored, "model."), shapes)
        slots = _empty_slots(model, stored, shapes) | _empty_numbers(model, stored) if optimizer else {}
        table = {f"model.{name}": tensor for name, tensor in own.items()} | slots
        tensor_table.read(
            directory, ((stored[name], local_box(tensor)[0], local(tensor)) for name, tensor in table.items()), tensor_files.read
        )
        if optimizer:
            _load_optimizer(optimizer, model, slots)
    except (RuntimeError, KeyError, ValueError) as error:
        if type(error) not in (RuntimeError, KeyError, ValueError):  # for example, out of memory, or a failed device
            raise
        raise tensor_table.misfit_error(directory, " ".join(str(error).split())) from error


def _empty_slots(model: nn.Module, stored: Mapping[str, Stored], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """An empty tensor for each stored slot of this rank's parameters. A slot with the shape of its parameter is distributed like it."""
    slots: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        for slot, entry in _below(stored, prefix).items():
            if entry.shape == shapes[name]:
                slots[prefix + slot] = torch.zeros_like(parameter, dtype=DTYPES[entry.dtype], requires_grad=False)
            elif not entry.shape or not isinstance(parameter, DTensor):
                slots[prefix + slot] = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
            else:
                raise ValueError(_cut_up(name, slot))
    return slots


def _empty_numbers(model: nn.Module, stored: Mapping[str, Stored]) -> dict[str, torch.Tensor]:
    own = tuple(f"number.{name}." for name, _ in model.named_parameters())
    return {name: torch.empty((), dtype=DTYPES[entry.dtype]) for name, entry in stored.items() if name.startswith((*own, "group."))}


def numbers_of(optimizer: torch.optim.Optimizer) -> Groups:
    """The numbers in each parameter group by name: hyperparameters and counters. Learning rates are left out, because they are a function
    of the step."""
    return [
        {name: value for name, value in group.items() if isinstance(value, int | float) and name not in RATES}
        for group in optimizer.param_groups
    ]


def _table(model: nn.Module, optimizer: torch.optim.Optimizer | None, initial_numbers: Groups) -> dict[str, torch.Tensor]:
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
                    f"the optimizer {type(optimizer).__name__} has a {kind} in {name}.{slot}, but a checkpoint can hold only tensors and "
                    "numbers; use another optimizer"
                )
    for index, (numbers, before) in enumerate(zip(numbers_of(optimizer), initial_numbers, strict=False)):
        counted = {name: value for name, value in numbers.items() if before.get(name) != value}
        table |= {f"group.{index}.{name}": _as_tensor(value) for name, value in counted.items()}
    return table


def _refuse_strangers(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own = set(model.parameters())
    strangers = [key for key, slots in optimizer.state.items() if slots and key not in own]
    if strangers:
        what = "a parameter that the model does not have" if isinstance(strangers[0], torch.Tensor) else repr(strangers[0])
        raise BadConfiguration(
            f"the optimizer {type(optimizer).__name__} has state for {what}, but a checkpoint holds only state of the model's parameters; "
            "use another optimizer"
        )


def _as_tensor(number: float) -> torch.Tensor:
    """A tensor with the number in full precision."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _cut_up(name: str, slot: str) -> str:
    return (
        f"the optimizer's {name}.{slot} does not have the shape of its parameter, which is divided among the ranks; use another optimizer, "
        "or DDP"
    )


def _load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, slots: dict[str, torch.Tensor]) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors, numbers = _below(slots, "optimizer."), {name: value.item() for name, value in _below(slots, "number.").items()}
    own: dict[int, dict[str, Any]] = {
        position: {**_below(tensors, f"{names[parameter]}."), **_below(numbers, f"{names[parameter]}.")}
        for position, parameter in enumerate(parameters)
    }
    state = {position: values for position, values in own.items() if values}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for position, values in state.items():
        slots_of_parameter = optimizer.state[parameters[position]]
        for slot, value in values.items():
            if isinstance(value, torch.Tensor) and slots_of_parameter[slot].dtype != value.dtype:  # PyTorch has cast it
                slots_of_parameter[slot] = value.to(slots_of_parameter[slot].device)
    for name, value in _below(slots, "group.").items():
        index, _, counted = name.partition(".")
        if int(index) >= len(optimizer.param_groups):
            raise ValueError(f"it has a parameter group {index}, which the optimizer does not have")
        if counted == "params" or counted in RATES:
            raise ValueError(f"it has {counted} of a parameter group, which is not a counter of an optimizer")
        optimizer.param_groups[int(index)][counted] = value.item()


def _below(table: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)}
