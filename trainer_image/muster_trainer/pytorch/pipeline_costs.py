"""Measures the cost of each layer of a model with one micro-batch, in the way in which training runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from muster_contract.errors import BadConfiguration, UserError
from muster_trainer.measure.measuring import nothing, timed
from muster_trainer.pytorch.pipeline_cut import Layer
from muster_trainer.tasks.module import describe

_BRIEFLY = {"warm_up": 1, "least": 3, "most": 50, "seconds": 0.02}
"""Limits for each layer. They are short, because all other ranks wait. A layer that takes a second is measured for four seconds."""


@dataclass(frozen=True)
class Profile:
    """The layers of a model, and meta tensors with the shape and dtype of the inputs of each layer and the outputs of the last."""

    layers: list[Layer]
    shapes: list[torch.Tensor]

    def to_document(self) -> dict[str, Any]:
        """The profile as JSON."""
        shapes = [(list(shape.shape), str(shape.dtype).removeprefix("torch.")) for shape in self.shapes]
        return {"layers": [asdict(layer) for layer in self.layers], "shapes": shapes}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Profile:
        shapes = [torch.empty(shape, dtype=getattr(torch, kind), device="meta") for shape, kind in document["shapes"]]
        return cls([Layer(**layer) for layer in document["layers"]], shapes)


def profile(model: nn.Sequential, values: Any, *, title: str) -> Profile:
    """Runs `values`, the inputs of a micro-batch, through the layers one by one. Does not change the model.

    Raises BadConfiguration if a layer cannot begin or end a stage, and UserError if a layer fails. The message names the layer.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    layers: list[Layer] = []
    shapes: list[torch.Tensor] = []
    saved: set[int] = set()
    owners: dict[int, str] = {}
    trained = False
    _one_tensor(values, "the data set", title=title)
    samples, regrouped = len(values), ""
    model.train()
    for name, layer in layers_of(model, title=title):
        label = f"layer {name} ({type(layer).__name__})"
        _own_parameters(layer, label, owners, title=title)
        shapes.append(values.to("meta"))
        inputs = values.detach().requires_grad_(trained)
        try:
            values, cost, saved = _measured(label, layer, inputs, saved)
        except Exception as error:
            raise UserError(f"{title}: the model failed on {len(inputs)} samples in {label}: {describe(error)}") from error
        _one_tensor(values, label, title=title)
        layers.append(cost)
        rows = len(values) if values.dim() else 0
        regrouped = "" if rows == samples else regrouped or f"{label} returns {rows} rows for {samples} samples"
        trained |= cost.trains
        if trained and not values.requires_grad:
            raise BadConfiguration(
                f"{title}: no gradient flows back through {label}, so that Pipeline cannot train what comes before it; take it "
                "out of the model, or freeze the layers before it (requires_grad_(False))"
            )
    if regrouped:
        raise BadConfiguration(
            f"{title}: {regrouped}, but Pipeline needs outputs with one row for each sample; regroup the rows in loss, or use another "
            "strategy"
        )
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return Profile(layers, [*shapes, values.to("meta")])


def layers_of(model: nn.Module, *, title: str) -> list[tuple[str, nn.Module]]:
    """The layers of a Sequential with their names. Raises BadConfiguration if the model is not a Sequential."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        raise BadConfiguration(
            f"{title}: Pipeline cuts a list of layers, but build_model returned a {type(model).__name__}; return a torch.nn.Sequential of "
            "its layers"
        )
    # unlike `named_children`, this includes a layer twice if the model does
    return [(name, layer) for name, layer in model.named_modules(remove_duplicate=False) if name and "." not in name]


def _one_tensor(values: Any, giver: str, *, title: str) -> None:
    if not isinstance(values, torch.Tensor):
        message = f"Pipeline passes one tensor from layer to layer, but {giver} returns a {type(values).__name__}; let it return one tensor"
        raise BadConfiguration(f"{title}: {message}")


def _own_parameters(layer: nn.Module, label: str, owners: dict[int, str], *, title: str) -> None:
    for parameter in layer.parameters():
        owner = owners.setdefault(id(parameter), label)
        if owner != label:
            raise BadConfiguration(
                f"{title}: {label} shares a parameter with {owner}, and Pipeline may put them into different stages; give each its own"
            )


def _measured(name: str, layer: nn.Module, inputs: torch.Tensor, before: set[int]) -> tuple[Any, Layer, set[int]]:
    """The outputs of a layer, its cost, and the addresses of the tensors that it saves for its backward pass. `before` are the addresses of
    the previous layer, because a tensor that both layers save must be counted once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    copied = copy(inputs)
    saved: dict[int, int] = {}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            original = storage.data_ptr() == copied.untyped_storage().data_ptr()
            saved[(inputs.untyped_storage() if original else storage).data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        outputs = layer(copied)
    received = sum(size for address, size in saved.items() if address in before)
    cost = Layer(
        name=name,
        seconds=_seconds(layer, inputs, outputs),
        parameters=sum(parameter.nbytes for parameter in layer.parameters()),
        activations=sum(saved.values()) - received,
        received=received,
        trains=any(parameter.requires_grad for parameter in layer.parameters()),
    )
    return outputs, cost, set(saved)


def copy(inputs: torch.Tensor) -> torch.Tensor:
    """A copy of `inputs` that a layer may change in place, as nn.ReLU(inplace=True) does. PyTorch forbids that for leaf tensors."""
    return inputs.clone() if inputs.requires_grad else inputs


def _seconds(layer: nn.Module, inputs: torch.Tensor, outputs: Any) -> float:
    differentiated = isinstance(outputs, torch.Tensor) and outputs.requires_grad
    gradient = torch.ones_like(outputs) if differentiated else None

    def there_and_back() -> None:
        results = layer(copy(inputs))
        if differentiated:
            results.backward(gradient)

    def reset_gradients() -> None:
        layer.zero_grad(set_to_none=True)
        inputs.grad = None

    synchronise: Callable[[], object] = torch.cuda.synchronize if inputs.is_cuda else nothing
    seconds = timed(there_and_back, prepare=reset_gradients, synchronise=synchronise, **_BRIEFLY).median
    reset_gradients()
    return seconds
