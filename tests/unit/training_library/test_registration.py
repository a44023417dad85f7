"""Registered state in one process: what is saved, restored, compared and refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster_training as muster
from muster_contract.errors import CheckpointDamaged, PeerLost, UserError
from muster_training import trees
from muster_training.protection import is_about_peer
from tests.unit.training_library.test_session import Enter, enter, own_process

__all__ = ["enter", "own_process"]
TREE = {"text": "a", 3: [1, 2.5, None, True, float("inf")], "pair": (1, b"\0\1"), "array": np.arange(6, dtype="int16").reshape(2, 3)}


class Counter:
    """An object with a state. `forgets`: it does not restore its total."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.total, self.forgets = 0.0, forgets

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.total = 0.0 if self.forgets else state["total"]


def train(steps: int, **objects: Any) -> list[float]:
    """Trains to `steps`. Returns the random numbers that its steps have drawn."""
    state = muster.register(**objects)
    counter = objects["counter"]
    drawn = []
    while state.step < steps:
        drawn.append(random.random() + np.random.rand())
        counter.total += drawn[-1]
        if state.finish_step(total=steps, loss=drawn[-1]):
            break
    return drawn


def test_states_that_are_written_and_read_are_equal(tmp_path: Path) -> None:
    trees.write(tmp_path / "states", {"a": trees.pack(TREE, "a"), "b": trees.pack(7, "b")})
    read = trees.read(tmp_path / "states")
    assert {name: each.digest for name, (each, _) in read.items()} == {name: digest for name, (_, digest) in read.items()}
    tree = trees.unpack(read["a"][0])
    assert {**tree, "array": tree["array"].tolist()} == {**TREE, "array": [[0, 1, 2], [3, 4, 5]]}
    assert trees.unpack(read["b"][0]) == 7


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "states").write_bytes(b"damaged")
    with pytest.raises(CheckpointDamaged, match="states is no file of registered states"):
        trees.read(tmp_path / "states")


@pytest.mark.torch
def test_tensors_keep_their_type_shape_and_bits() -> None:
    import torch

    for tensor in (torch.randn(2, 3).to(torch.bfloat16), torch.tensor(3), torch.empty(0, 4), torch.randn(4, 4).t()):
        again = trees.unpack(trees.pack(tensor, "tensor", copies=True))
        assert again.dtype == tensor.dtype
        assert torch.equal(again, tensor)


def test_a_training_goes_on_with_the_numbers_of_an_undisturbed_one(tmp_path: Path, enter: Enter) -> None:
    random.seed(1)
    np.random.seed(1)
    enter(tmp_path / "undisturbed")
    expected = train(6, counter=Counter())
    random.seed(1)
    np.random.seed(1)
    enter(tmp_path / "storage")
    first = train(4, counter=Counter())
    random.seed(2)
    np.random.seed(2)
    sent = enter(tmp_path / "storage", attempt=1)
    counter = Counter()
    assert first + train(6, counter=counter) == expected
    assert counter.total == sum(expected)
    assert [event["step"] for event in sent if event["event"] == "commit"] == [6]


@pytest.mark.parametrize(
    ("again", "message"),
    [
        pytest.param(
            {"counter": Counter(forgets=True)}, "counter has another state after it was restored than it had at step 2", id="forgets"
        ),
        pytest.param({"counter": Counter(), "new": Counter()}, "the checkpoint of step 2 has no new, but counter", id="registers more"),
        pytest.param({"counter": (dict, {}.__getitem__)}, "the state of counter at step 2 cannot be restored", id="does not fit"),
    ],
)
def test_a_restore_that_would_change_the_training_is_refused(again: dict[str, Any], message: str, tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path / "storage")
    train(2, counter=Counter())
    enter(tmp_path / "storage", attempt=1)
    with pytest.raises(UserError, match=message):
        muster.register(**again)


def test_states_that_are_not_registered_any_more_are_named(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path / "storage")
    train(2, counter=Counter(), average=Counter())
    sent = enter(tmp_path / "storage", attempt=1)
    muster.register(counter=Counter())
    assert any("the checkpoint also has average" in event.get("message", "") for event in sent)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        pytest.param(lambda: muster.register(), "name the objects", id="nothing"),
        pytest.param(lambda: muster.register(model=object()), r"model=\(save, restore\)", id="no state"),
        pytest.param(
            lambda: muster.register(set=(lambda: {"seen": {1}}, print)).finish_step(),
            r"set\['seen'\] is a set, which cannot be saved",
            id="a set",
        ),
    ],
)
def test_objects_that_cannot_be_saved_are_refused(register: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        register()


def test_a_checkpoint_without_registered_state_is_refused(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path / "storage")
    with muster.checkpoint(3) as folder:
        (folder / "own").write_text("own")
    enter(tmp_path / "storage", attempt=1)
    with pytest.raises(UserError, match=re.escape("read it with latest()")):
        muster.register(counter=Counter())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PeerLost("rank 0 is gone"), True),
        (RuntimeError("[pair.cc:561] Connection closed by peer [127.0.0.1]:20864"), True),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_the_loss_of_a_peer_is_recognized(error: Exception, expected: bool) -> None:
    assert is_about_peer(error, ("Connection closed by peer",)) == expected
    wrapper = ValueError("wrapped")
    wrapper.__cause__ = error
    assert is_about_peer(wrapper, ("Connection closed by peer",)) == expected


@pytest.mark.torch
def test_an_optimizer_that_has_begun_the_next_step_is_not_saved_as_the_last_one() -> None:
    import torch

    from muster_training.parts import Changed, part_of

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    parts = [part_of("model", model), part_of("optimizer", optimizer)]
    for part in parts:
        part.keep()
    before = [part.now().digest for part in parts]
    model(torch.randn(4, 2)).sum().backward()  # changes the buffers
    assert parts[0].now().digest != before[0]
    assert [part.kept().digest for part in parts] == before
    optimizer.step()
    for part in parts:
        with pytest.raises(Changed, match=part.name):
            part.kept()


@pytest.mark.torch
@pytest.mark.parametrize("changes", [False, True])
def test_an_optimizer_whose_closure_fails_still_has_the_state_of_the_last_step(changes: bool) -> None:
    import torch

    from muster_training.parts import Changed, part_of

    def closure() -> None:
        if changes:
            with torch.no_grad():
                model.weight.add_(1)
        raise PeerLost("the peer is gone")

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    part = part_of("optimizer", optimizer)
    part.keep()
    with pytest.raises(PeerLost):
        optimizer.step(closure)
    if changes:
        with pytest.raises(Changed):
            part.kept()
    else:
        assert part.kept().digest == part.now().digest


@pytest.mark.torch
def test_an_accelerator_stands_for_all_that_it_has_prepared(tmp_path: Path, enter: Enter) -> None:
    import torch
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    sent = enter(tmp_path / "storage")
    with pytest.raises(UserError, match="prepared nothing"):
        muster.register(accelerator=accelerator)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))
    state = muster.register(accelerator=accelerator)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    scheduler.step()
    state.finish_step(total=1)
    weights = model.weight.detach().clone()
    torch.nn.init.zeros_(model.weight)
    enter(tmp_path / "storage", attempt=1)
    assert muster.register(accelerator=accelerator).step == 1
    assert torch.equal(model.weight, weights)
    assert not [each for each in sent if "not registered" in each.get("message", "")]


@pytest.mark.torch
def test_what_trains_without_being_registered_is_named(tmp_path: Path, enter: Enter) -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sent = enter(tmp_path / "storage")
    muster.register(optimizer=optimizer).finish_step(total=9)
    [message] = [event["message"] for event in sent if "not registered" in event.get("message", "")]
    assert "a module whose parameters the optimizer updates" in message
    assert type(scheduler).__name__ in message
