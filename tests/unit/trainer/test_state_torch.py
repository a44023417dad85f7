"""The checkpoint files of the PyTorch strategies: nothing but tensors is stored, and reading them runs no code."""

from __future__ import annotations

import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from muster_trainer.contract import BadConfiguration, StorageUnavailable  # noqa: E402
from muster_trainer.engine import Part  # noqa: E402
from muster_trainer.pytorch import export, state  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def save(directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    write(state.snapshot(directory, model, optimizer, room=0))


def write(part: Part) -> None:
    names, told = part.write()
    assert [*names, *part.finish([told])]


def trained(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.1),
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


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_training_goes_on_from_the_files_as_if_it_had_not_stopped(tmp_path: Path, kind: str) -> None:
    model, optimizer = trained(kind)
    save(tmp_path, model, optimizer)
    expected = [step(model, optimizer) for _ in range(3)]
    other, other_optimizer = trained(kind)
    step(other, other_optimizer)
    state.load(tmp_path, other, other_optimizer, shapes(other))
    assert [step(other, other_optimizer) for _ in range(3)] == expected


def test_a_copy_is_written_as_the_state_was_when_it_was_made(tmp_path: Path) -> None:
    model, optimizer = trained("adam")
    part = state.snapshot(tmp_path, model, optimizer, room=1 << 30)
    expected = [step(model, optimizer) for _ in range(3)]
    write(part)
    state.load(tmp_path, model, optimizer, shapes(model))
    assert [step(model, optimizer) for _ in range(3)] == expected


def test_a_model_of_another_shape_is_refused_with_the_remedies(tmp_path: Path) -> None:
    save(tmp_path, *trained("adam"))
    wider = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
    with pytest.raises(BadConfiguration, match=r"does not fit the model.*resume: Never"):
        state.load(tmp_path, wider, torch.optim.Adam(wider.parameters()), shapes(wider))


class Evil:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.target,)


def test_an_index_that_would_run_code_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained("sgd")
    save(tmp_path, model, optimizer)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(str(tmp_path / "broken-in"))))
    with pytest.raises(pickle.UnpicklingError, match="no checkpoint needs"):
        state.load(tmp_path, model, optimizer, shapes(model))
    assert not (tmp_path / "broken-in").exists()


def test_a_disk_that_is_full_shows_as_the_error_of_the_disk(tmp_path: Path) -> None:
    part = state.snapshot(tmp_path, torch.nn.Linear(256, 256), None, room=1 << 30)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))  # Python ignores the signal: writes fail
    try:
        with pytest.raises(OSError, match="File too large"):
            export.save({"weight": torch.zeros(1 << 16)}, tmp_path / "model.pt")
        with pytest.raises(StorageUnavailable, match="File too large"):
            part.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
