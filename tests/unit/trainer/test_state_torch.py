"""The checkpoint files of the PyTorch strategies: only tensors are stored, and reading them runs no code."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.events import CommitReason
from muster_trainer.checkpoint import Manifest, files
from muster_trainer.pytorch import export, packing, state
from muster_trainer.snapshots.payload import pack_list, starts_of
from muster_trainer.training.engine import Part

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("world_of_one"), pytest.mark.filterwarnings("ignore")]


def save(directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, given: state.Groups = ()) -> None:
    directory.mkdir(exist_ok=True)
    write(directory, state.part_to_save(directory, model, optimizer, initial_numbers=given, room=0))


def write(directory: Path, part: Part) -> None:
    names, details = part.write()
    listing([*names, *part.finish([json.loads(json.dumps(details))])], directory)


def listing(names: list[str], directory: Path) -> None:
    """Writes the manifest of a checkpoint with these files, as a commit does."""
    listed = {name: {"bytes": files.size(directory / name), "sha256": files.sha256(directory / name)} for name in names}
    manifest = Manifest(1, 0, 0, 1, 1, "DDP", 0, {}, {}, CommitReason.PERIODIC, "now", listed)
    (directory / "manifest.json").write_bytes(manifest.to_bytes())


def trained(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.1),
        "adafactor": lambda: torch.optim.Adafactor(model.parameters(), lr=0.1),  # its slots are the means of rows and columns
    }[kind]()
    step(model, optimizer)
    return model, optimizer


def shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.arange(12.0).reshape(4, 3)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adafactor"])
def test_a_restored_training_continues_as_if_it_had_not_stopped(tmp_path: Path, kind: str) -> None:
    model, optimizer = trained(kind)
    save(tmp_path, model, optimizer)
    expected = [step(model, optimizer) for _ in range(3)]
    other, other_optimizer = trained(kind)
    step(other, other_optimizer)
    state.load(tmp_path, other, other_optimizer, shapes(other))
    assert [step(other, other_optimizer) for _ in range(3)] == expected


class Counting(torch.optim.Optimizer):
    """Keeps numbers of Python for each parameter and for each group, and computes with all of them."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], weight_decay: float = 0.25) -> None:
        super().__init__(parameters, {"lr": 0.1, "weight_decay": weight_decay, "k": 0, "sum": 0.0, "begun": False})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            group["sum"] += 0.1
            group["begun"] = True
            for parameter in group["params"]:
                own = self.state[parameter]
                own["calls"] = own.get("calls", 0) + 1
                own["total"] = own.get("total", 1.0) + 0.1
                rate = group["lr"] / (group["k"] * group["sum"] * own["calls"] * own["total"])
                parameter.sub_(rate * (parameter.grad + group["weight_decay"] * parameter))


def counting(*, weight_decay: float = 0.25) -> tuple[torch.nn.Module, torch.optim.Optimizer, state.Groups]:
    """The third value is the first state of its groups."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    optimizer = Counting(model.parameters(), weight_decay)
    return model, optimizer, state.numbers_of(optimizer)


def test_python_numbers_of_an_optimizer_are_restored_with_digits_and_types(tmp_path: Path) -> None:
    model, optimizer, given = counting()
    for _ in range(3):
        step(model, optimizer)
    save(tmp_path, model, optimizer, given)
    slots = [dict(own) for own in optimizer.state.values()]
    counted = {name: optimizer.param_groups[0][name] for name in ("k", "sum", "begun")}
    expected = [step(model, optimizer) for _ in range(3)]
    other, other_optimizer, _ = counting()
    state.load(tmp_path, other, other_optimizer, shapes(other))
    assert list(other_optimizer.state.values()) == slots == [{"calls": 3, "total": 1.0 + 0.1 + 0.1 + 0.1}] * 2
    assert [type(value) for value in other_optimizer.state[other.weight].values()] == [int, float]
    restored = {name: other_optimizer.param_groups[0][name] for name in counted}
    assert restored == counted == {"k": 3, "sum": 0.1 + 0.1 + 0.1, "begun": True}
    assert [type(value) for value in restored.values()] == [int, float, bool]
    assert [step(other, other_optimizer) for _ in range(3)] == expected


def test_python_numbers_of_an_optimizer_outlive_two_resumes(tmp_path: Path) -> None:
    model, optimizer, given = counting()
    step(model, optimizer)
    save(tmp_path / "first", model, optimizer, given)
    again, again_optimizer, given = counting()
    state.load(tmp_path / "first", again, again_optimizer, shapes(again))
    save(tmp_path / "second", again, again_optimizer, given)
    last, last_optimizer, _ = counting()
    state.load(tmp_path / "second", last, last_optimizer, shapes(last))
    assert last_optimizer.param_groups[0]["k"] == 1


def test_a_hyperparameter_comes_from_the_new_job(tmp_path: Path) -> None:
    model, optimizer, given = counting(weight_decay=0.25)
    step(model, optimizer)
    save(tmp_path, model, optimizer, given)
    other, other_optimizer, _ = counting(weight_decay=0.5)
    state.load(tmp_path, other, other_optimizer, shapes(other))
    assert other_optimizer.param_groups[0]["weight_decay"] == 0.5
    assert other_optimizer.param_groups[0]["k"] == 1


def test_a_slot_may_have_another_precision_than_its_parameter(tmp_path: Path) -> None:
    model, optimizer = trained("momentum")
    third = torch.ones(3, dtype=torch.float64) / 3
    optimizer.state[model[0].weight]["third"] = third
    save(tmp_path, model, optimizer)
    other, other_optimizer = trained("momentum")
    state.load(tmp_path, other, other_optimizer, shapes(other))
    assert other_optimizer.state[other[0].weight]["third"].dtype == torch.float64
    assert torch.equal(other_optimizer.state[other[0].weight]["third"], third)


@pytest.mark.parametrize(
    ("key", "owner"), [("seen", "'seen'"), (torch.nn.Parameter(torch.zeros(2)), "a parameter that the model does not have")]
)
def test_an_optimizer_with_state_for_other_keys_than_parameters_is_refused(tmp_path: Path, key: Any, owner: str) -> None:
    model, optimizer = trained("momentum")
    optimizer.state[key] = {"count": 1}
    with pytest.raises(BadConfiguration, match=rf"optimizer SGD .*{owner}, .*another optimizer"):
        save(tmp_path, model, optimizer)


@pytest.mark.parametrize(("value", "kind"), [([torch.zeros(3)], "list"), ({"seen": 1}, "dict")])
def test_an_optimizer_state_of_another_type_is_refused_by_name(tmp_path: Path, value: object, kind: str) -> None:
    model, optimizer = trained("momentum")
    optimizer.state[model[0].weight]["history"] = value
    with pytest.raises(BadConfiguration, match=rf"optimizer SGD .*{kind} .*0\.weight\.history, .*another optimizer"):
        save(tmp_path, model, optimizer)


def test_a_copy_has_the_state_at_the_time_of_the_save(tmp_path: Path) -> None:
    model, optimizer = trained("adam")
    part = state.part_to_save(tmp_path, model, optimizer, room=1 << 30)
    expected = [step(model, optimizer) for _ in range(3)]
    write(tmp_path, part)
    state.load(tmp_path, model, optimizer, shapes(model))
    assert [step(model, optimizer) for _ in range(3)] == expected


def test_a_model_of_another_shape_is_refused_with_the_remedies(tmp_path: Path) -> None:
    save(tmp_path, *trained("adam"))
    wider = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
    with pytest.raises(BadConfiguration, match=r"does not fit the model.*resume: Never"):
        state.load(tmp_path, wider, torch.optim.Adam(wider.parameters()), shapes(wider))


def test_a_full_disk_is_reported_with_its_own_error(tmp_path: Path) -> None:
    part = state.part_to_save(tmp_path, torch.nn.Linear(256, 256), None, room=1 << 30)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))  # Python ignores the signal: writes fail
    try:
        with pytest.raises(OSError, match="File too large"):
            export.save({"weight": torch.zeros(1 << 16)}, tmp_path / "model.pt")
        with pytest.raises(StorageUnavailable, match="File too large"):
            part.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("name", "sizes"), [("model.weight", [-1, -1]), ("model.weight", [2, "2"]), (5, [2, 2])])
def test_a_snapshot_with_a_part_that_cannot_be_is_refused(name: object, sizes: list[Any]) -> None:
    listed = pack_list([[name, "float32", [2, 2], [0, 0], sizes]])
    *_, size = starts_of([16 if name == 5 else 4], after=len(listed))
    with pytest.raises(BadConfiguration, match="does not fit the model"):
        packing.unpack(memoryview(bytearray(listed.ljust(size, b"\0"))), torch.nn.Linear(2, 2, bias=False), None)
