"""The arithmetic of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.spec import LearningRateScaling, TrainingJobSpec
from muster.strategies.batch import device_shares, learning_rate_scale, split
from muster.strategies.registry import strategy_of


def test_1024_samples_over_4_workers_of_4_devices_are_256_a_worker_and_64_a_device() -> None:
    shares = device_shares(1024, [4, 4, 4, 4])
    assert [sum(worker) for worker in shares] == [256] * 4
    assert {share for worker in shares for share in worker} == {64}


def test_what_does_not_divide_goes_to_the_first_devices() -> None:
    assert split(10, 4) == (3, 3, 2, 2)
    assert split(2, 3) == (1, 1, 0)


def test_replicas_of_different_sizes_give_each_device_as_much() -> None:
    assert device_shares(12, [1, 2, 3]) == ((2,), (2, 2), (2, 2, 2))


@given(total=st.integers(0, 10_000), devices=st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_shares_add_up_to_the_batch_and_differ_by_one_at_most(total: int, devices: list[int]) -> None:
    shares = device_shares(total, devices)
    flat = [share for replica in shares for share in replica]
    assert [len(replica) for replica in shares] == devices
    assert sum(flat) == total
    assert max(flat) - min(flat) <= 1


def test_the_learning_rate_grows_as_asked() -> None:
    assert learning_rate_scale(LearningRateScaling.NONE, 16) == 1
    assert learning_rate_scale(LearningRateScaling.LINEAR, 16) == 16
    assert learning_rate_scale(LearningRateScaling.SQRT, 16) == 4


@pytest.mark.parametrize(
    ("strategy", "worker", "options", "devices"),
    [
        ("DDP", {"replicas": 4, "resources": {"limits": {"nvidia.com/gpu": 4}}}, {}, 16),
        ("MultiWorkerMirrored", {"replicas": 4, "resources": {"limits": {"nvidia.com/gpu": 4}}}, {}, 16),
        ("Mirrored", {}, {"devices": ["GPU:0", "GPU:1"]}, 2),
        ("OneDevice", {"resources": {"limits": {"nvidia.com/gpu": 4}}}, {}, 1),
        ("TensorParallel", {"replicas": 4}, {}, 1),
        ("Pipeline", {"replicas": 4}, {}, 1),
        ("Pipeline", {"replicas": 4}, {"mesh": {"data": 2, "pipeline": 2}}, 2),
        ("FSDP", {"replicas": 4}, {}, 4),
        ("FSDP", {"replicas": 4}, {"mesh": {"data": 2, "tensor": 2}}, 2),
        ("TPU", {"replicas": 2}, {"tpu": {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}}, 8),
    ],
)
def test_a_batch_is_shared_over_devices_that_hold_different_copies(strategy: str, worker: dict, options: dict, devices: int) -> None:
    spec = TrainingJobSpec.model_validate(
        {"strategy": strategy, "trainer": {"task": "digits"}, "roles": {"worker": worker}, "options": options}
    )
    assert strategy_of(spec.strategy).data_parallel(spec) == devices
