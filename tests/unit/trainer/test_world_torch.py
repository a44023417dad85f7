"""What counts in a PyTorch world that is broken, without a world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from muster_contract.errors import BadConfiguration, ConnectionLost, PeerLost
from muster_trainer.pytorch import device, engine, world

pytestmark = pytest.mark.torch


@pytest.fixture
def aborted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The calls of the function that aborts NCCL's communicators."""
    calls: list[int] = []
    monkeypatch.setattr(world, "abort_nccl", lambda: calls.append(1))
    yield calls
    world.is_broken.clear()


def test_no_result_counts_once_the_worldis_broken(aborted: list[int]) -> None:
    with pytest.raises(ConnectionLost), world.detect_peer_loss():
        world.break_world()
    with pytest.raises(ConnectionLost), world.check_world():
        pass


def test_a_worldis_broken_once(aborted: list[int]) -> None:
    world.break_world()
    world.break_world()
    assert aborted == [1]


@pytest.mark.parametrize("error", [ValueError("no number"), MemoryError(), RuntimeError("device-side assert")])
def test_an_error_in_a_broken_world_is_the_loss_of_a_peer(error: Exception, aborted: list[int]) -> None:
    """An aborted collective leaves any numbers, and the user's code may fail with them."""
    world.break_world()
    with pytest.raises(ConnectionLost), world.check_world():
        raise error


def test_an_error_of_the_user_stays_what_it_is_otherwise() -> None:
    with pytest.raises(ValueError, match="no number"), world.check_world():
        raise ValueError("no number")


def test_a_loss_keeps_its_own_message(aborted: list[int]) -> None:
    world.break_world()
    with pytest.raises(PeerLost, match="a port is in use"), world.check_world():
        raise PeerLost("a port is in use")


@pytest.mark.parametrize(
    "text",
    [
        "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
    ],
    ids=["2.28", "2.30"],
)
def test_a_gpu_that_two_processes_use_is_a_mistake_of_the_user(text: str) -> None:
    remedy = r"give each process its own GPU, or write spec\.communication: Gloo"
    with pytest.raises(BadConfiguration, match=remedy), world.detect_peer_loss():
        raise dist.DistBackendError(text)


def test_a_step_whose_votes_are_there_counts_in_a_broken_world(aborted: list[int]) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tally = engine.Tally(torch.tensor([2.0, 1.0], dtype=torch.float64), [True, False, False], [0.5])
        first = tally.wait()
        world.break_world()
        assert tally.wait() == first == [2.0, 1.0, 1.0, 0.0, 0.0, 0.5]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("local_rank", "shared", "expected"), [("0", "0", 0), ("1", "0", 1), ("2", "1", 0), ("3", "1", 1)])
def test_a_process_computes_on_the_device_of_its_local_rank(
    local_rank: str, shared: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpus(monkeypatch, local_rank=local_rank, shared=shared)
    assert device.device_of("nccl") == torch.device("cuda", expected)


def test_a_process_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpus(monkeypatch, local_rank="2", shared="0")
    message = "process 2 of this replica has no GPU, because the replica sees 2; write processesPerReplica: 2"
    with pytest.raises(BadConfiguration, match=message):
        device.device_of("nccl")


def two_gpus(monkeypatch: pytest.MonkeyPatch, *, local_rank: str, shared: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", shared)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("set_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
