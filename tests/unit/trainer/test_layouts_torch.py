"""The parameters that RPC places on servers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muster_trainer.pytorch.parameter_server import ParameterServer, assign_parameters, keep_parameters

pytestmark = pytest.mark.torch


def model(layers: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*[part for _ in range(layers) for part in (torch.nn.Linear(2, 2), torch.nn.ReLU())])


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 1000), min_size=1), st.integers(1, 4))
def test_every_parameter_has_a_server_and_the_servers_are_balanced(sizes: dict[str, int], servers: int) -> None:
    owners = assign_parameters(sizes, range(servers))
    assert owners.keys() == sizes.keys()
    held = [sum(size for name, size in sizes.items() if owners[name] == server) for server in range(servers)]
    assert max(held) <= sum(sizes.values()) / servers + max(sizes.values())


def test_a_server_stores_its_parameters_under_their_names() -> None:
    assert list(keep_parameters(model(2), ["2.bias"]).state_dict()) == ["2.bias"]


def server() -> ParameterServer:
    part = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(part.weight)
    return ParameterServer(part, torch.optim.SGD(part.parameters(), lr=1.0))


def test_an_asynchronous_push_updates_at_once_and_returns_its_staleness() -> None:
    held = server()
    first, _ = held.pull()
    assert [held.push(worker, first, {"weight": torch.ones(1, 1)}, update=True, rate=1.0) for worker in (1, 2, 1)] == [0, 1, 2]
    version, values = held.pull()
    assert version == 3
    assert values["weight"].item() == -3.0


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_the_sum_of_synchronous_gradients_does_not_depend_on_their_order(order: tuple[int, ...]) -> None:
    held = server()
    parts = {1: 1e8, 2: -1e8, 3: 0.3}  # floats, whose sum depends on the order
    for worker in order:
        held.push(worker, 0, {"weight": torch.full((1, 1), parts[worker])}, update=False, rate=1.0)
    assert held.square() == pytest.approx(0.09)
    held.update(2.0, rate=0.5)
    assert held.pull()[1]["weight"].item() == pytest.approx(-0.3)
    assert held.version == 1


def test_gradients_of_a_skipped_step_are_dropped() -> None:
    held = server()
    held.push(1, 0, {"weight": torch.full((1, 1), float("nan"))}, update=False, rate=1.0)
    held.update(None, rate=1.0)
    held.push(1, 0, {"weight": torch.ones(1, 1)}, update=False, rate=1.0)
    held.update(1.0, rate=1.0)
    assert held.pull() == (1, {"weight": torch.tensor([[-1.0]])})
