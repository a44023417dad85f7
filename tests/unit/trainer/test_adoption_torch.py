"""Ranks get the newest state from another one, over a list in place of messages. Also what makes a survivor give up a world."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from muster_contract.errors import ConnectionLost, PeerLost
from muster_trainer.pytorch import adoption, state, world
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.training.survivor import SurvivorSteps

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


class Messages:
    """Stands in for the messages between rank 1, which sends, and rank 0. `sent` has what the other rank has sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, rank: int) -> None:
        self.sent: list[Any] = []
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "broadcast_object_list", self._broadcast_objects)
        monkeypatch.setattr(dist, "broadcast", self._broadcast)
        monkeypatch.setattr(dist, "P2POp", lambda send, tensor, peer: (send, tensor, peer))
        monkeypatch.setattr(dist, "batch_isend_irecv", self._exchange)
        self._receives = rank == 0

    def _broadcast_objects(self, objects: list[Any], *, src: int, device: torch.device) -> None:
        if self._receives:
            objects[:] = self.sent.pop(0)
        else:
            self.sent.append(list(objects))

    def _broadcast(self, tensor: torch.Tensor, *, src: int) -> None:
        if self._receives:
            tensor.copy_(self.sent.pop(0))
        else:
            self.sent.append(tensor.clone())

    def _exchange(self, messages: list[tuple[Any, torch.Tensor, int]]) -> list[Any]:
        for _, tensor, _ in messages:
            self._broadcast(tensor, src=1)
        return []


class CountsInPython(torch.optim.SGD):
    """Keeps numbers of Python beside its tensors."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            group["counted"] = group.get("counted", 0) + 1
            for parameter in group["params"]:
                self.state[parameter]["seen"] = self.state[parameter].get("seen", 0) + 1


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "momentum": lambda parameters: CountsInPython(parameters, lr=0.1, momentum=0.9),
}


def trained(optimizer: str, steps: int, *, seed: int) -> Any:
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    module[0].weight = torch.nn.Parameter(module[0].weight.detach().t().contiguous().t())  # not contiguous
    parallel = SimpleNamespace(module=module, stored_optimizer=OPTIMIZERS[optimizer](module.parameters()))
    for _ in range(steps):
        parallel.stored_optimizer.zero_grad()
        module(torch.rand(8, 3)).sum().backward()
        parallel.stored_optimizer.step()
    return parallel


def numbers(parallel: Any) -> dict[str, list[float]]:
    return {
        box.name: tensor.flatten().tolist() for box, tensor in state.local_table(parallel.module, parallel.stored_optimizer, [{}]).items()
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2], ids=["a new process", "a survivor with an older state"])
def test_a_rank_gets_the_state_of_another(optimizer: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    survivor_steps = SurvivorSteps((steps or None, 3))
    source, receiver = trained(optimizer, 3, seed=1), trained(optimizer, steps, seed=2)
    before = {name: parameter.data_ptr() for name, parameter in receiver.module.named_parameters()}
    messages = Messages(monkeypatch, rank=1)
    adoption.adopt(survivor_steps, source, [{}], device=CPU)
    sent = messages.sent
    messages = Messages(monkeypatch, rank=0)
    messages.sent = sent
    adoption.adopt(survivor_steps, receiver, [{}], device=CPU)
    assert messages.sent == []
    assert numbers(receiver) == numbers(source)
    assert {name: parameter.data_ptr() for name, parameter in receiver.module.named_parameters()} == before


def test_what_is_received_is_not_held_twice() -> None:
    source, receiver = trained("adam", 3, seed=1), trained("adam", 0, seed=2)
    tensors, complete = state.room(
        receiver.module, receiver.stored_optimizer, state.local_table(source.module, source.stored_optimizer, [])
    )
    complete()
    own = state.local_table(receiver.module, receiver.stored_optimizer, [])
    assert {box.name: tensor.data_ptr() for box, tensor in tensors.items()} == {box.name: tensor.data_ptr() for box, tensor in own.items()}


def test_nothing_is_sent_if_all_ranks_have_the_newest_state(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = Messages(monkeypatch, rank=1)
    adoption.adopt(SurvivorSteps((3, 3)), trained("adam", 3, seed=1), [{}], device=CPU)
    assert messages.sent == []


def test_a_stop_ends_the_wait_for_a_world_also_when_all_ranks_are_there() -> None:
    def meanwhile() -> None:
        raise ConnectionLost("asked to stop")

    with pytest.raises(ConnectionLost, match="asked to stop"):
        world._meet(dist.HashStore(), 1, meanwhile)


def test_a_survivor_that_takes_more_samples_than_another_rank_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process can take fewer samples. A survivor would try again in each further world."""
    engine: Any = SimpleNamespace(
        _store=None,
        _join=lambda *_, **__: None,
        _minimum=lambda _: 4,
        spec=SimpleNamespace(batch=SimpleNamespace(most_at_once=8)),
        parallel=SimpleNamespace(context=SimpleNamespace(max_samples=8)),
    )
    monkeypatch.setattr("muster_trainer.pytorch.engine.leave_groups", lambda *_: None)
    with pytest.raises(PeerLost, match="takes fewer samples") as caught:
        TorchEngine.rejoin(engine, 3, lambda: None)
    assert not isinstance(caught.value, ConnectionLost)
