"""The costs of the layers of a pipeline, and the models that are refused with the name of a layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from muster_contract.errors import BadConfiguration, UserError
from muster_trainer.checkpoint.cuts import saved_cut
from muster_trainer.pytorch.pipeline_costs import Profile, layers_of, profile

pytestmark = pytest.mark.torch

FLOAT = 4
SAMPLES = 8


def measured(*layers: nn.Module, inputs: object = None) -> Profile:
    return profile(nn.Sequential(*layers), torch.ones(SAMPLES, 4) if inputs is None else inputs, title="task t")


def test_each_layer_has_its_time_parameters_and_activations() -> None:
    wide, relu, narrow = measured(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).layers
    assert wide.name == "layer 0 (Linear)"
    assert (wide.parameters, relu.parameters, narrow.parameters) == (30 * FLOAT, 0, 14 * FLOAT)
    assert (wide.trains, relu.trains) == (True, False)
    assert min(wide.seconds, relu.seconds, narrow.seconds) > 0
    # ReLU and the last layer both store the output of ReLU.
    assert (wide.activations, relu.activations, narrow.activations, narrow.received) == (
        SAMPLES * 4 * FLOAT,
        SAMPLES * 6 * FLOAT,
        0,
        SAMPLES * 6 * FLOAT,
    )


def test_a_measurement_does_not_change_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    profile(model, torch.randn(SAMPLES, 4), title="task t")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_json_preserves_shapes_and_costs() -> None:
    costs = measured(nn.Embedding(9, 3), nn.Flatten(), inputs=torch.zeros(SAMPLES, 2, dtype=torch.int64))
    again = Profile.of(costs.to_document())
    assert again.layers == costs.layers
    assert [(one.shape, one.dtype) for one in again.shapes] == [
        ((SAMPLES, 2), torch.int64),
        ((SAMPLES, 2, 3), torch.float32),
        ((SAMPLES, 6), torch.float32),
    ]


class Largest(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.argmax(dim=1)


class Halved(nn.Module):
    """Two samples in each row."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.reshape(len(values) // 2, -1)


class Doubled(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.reshape(2 * len(values), -1)


class Mean(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.mean()


def tied() -> tuple[nn.Module, ...]:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    return first, nn.ReLU(), last


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        (lambda: (nn.Linear(4, 4), nn.LSTM(4, 4)), BadConfiguration, r"layer 1 \(LSTM\) .*tuple"),
        (tied, BadConfiguration, r"layer 2 \(Linear\) .*layer 0 \(Linear\)"),
        (lambda: (nn.Linear(4, 4), Largest(), nn.Embedding(4, 2)), BadConfiguration, r"gradient .*layer 1 \(Largest\)"),
        (lambda: (nn.Linear(4, 4), Halved(), nn.Linear(8, 1)), BadConfiguration, r"layer 1 \(Halved\) .*4 .*8 .* loss"),
        (lambda: (nn.Linear(4, 4), Doubled(), Halved(), Mean()), BadConfiguration, r"layer 3 \(Mean\) .*0 .*8 "),
        (lambda: (nn.Linear(4, 4), nn.Linear(5, 1)), UserError, r"layer 1 \(Linear\): RuntimeError"),
    ],
)
def test_a_layer_that_cannot_be_in_a_pipeline_is_named(
    layers: Callable[[], tuple[nn.Module, ...]], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        measured(*layers())


def test_layers_may_regroup_rows_if_the_last_one_gives_a_row_per_sample() -> None:
    costs = measured(nn.Linear(4, 4), Halved(), nn.Linear(8, 8), Doubled(), nn.Linear(4, 1))
    assert [tuple(shape.shape) for shape in costs.shapes] == [(8, 4), (8, 4), (4, 8), (4, 8), (8, 4), (8, 1)]


def test_inputs_that_are_not_one_tensor_are_refused() -> None:
    with pytest.raises(BadConfiguration, match=r"one tensor .* dict"):
        measured(nn.Linear(4, 4), inputs={"left": torch.ones(SAMPLES, 4)})


class Residual(nn.Sequential):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + super().forward(values)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Residual(nn.Linear(2, 2))])
def test_a_model_that_is_no_plain_list_of_layers_is_refused(model: nn.Module) -> None:
    with pytest.raises(BadConfiguration, match=f"build_model .*{type(model).__name__}.* torch.nn.Sequential"):
        layers_of(model, title="task t")


def test_a_layer_may_work_in_place() -> None:
    assert [one.name for one in measured(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)).layers][1] == "layer 1 (ReLU)"


def test_a_layer_that_is_used_twice_is_listed_twice() -> None:
    relu = nn.ReLU()
    assert [name for name, _ in layers_of(nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu), title="task t")] == list("0123")


def cut_of(directory: Path | None, decided: list[int]) -> tuple[list[int], bool]:
    return saved_cut(directory, {"stages": len(decided)}, lambda: decided, stages=len(decided), layers=7)


def test_a_saved_cut_is_reused_only_by_worlds_of_its_shape(tmp_path: Path) -> None:
    assert cut_of(tmp_path, [3, 4]) == ([3, 4], False)
    assert cut_of(tmp_path, [4, 3]) == ([3, 4], True)
    assert cut_of(tmp_path, [2, 2, 3]) == ([2, 2, 3], False)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text()[:5])  # a crash tore them
    assert cut_of(tmp_path, [1, 6]) == ([1, 6], False)
    assert cut_of(None, [5, 2]) == ([5, 2], False)


@pytest.mark.parametrize("layers", [[0, 7], [-1, 8], [3, 5], [7], [3.0, 4.0], [True, 6], "34", {"3": 4}, None, [10**30, 4]])
def test_a_saved_cut_that_does_not_fit_the_model_is_replaced(tmp_path: Path, layers: object) -> None:
    cut_of(tmp_path, [3, 4])
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({"layers": layers}))
    assert cut_of(tmp_path, [4, 3]) == ([4, 3], False)
