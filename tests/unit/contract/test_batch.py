"""The arithmetic of batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster_contract.batch import LearningRateScaling, largest_portion, learning_rate_factor, split


def test_the_first_devices_get_the_remaining_samples() -> None:
    assert split(1024, 16) == (64,) * 16
    assert split(10, 4) == (3, 3, 2, 2)
    assert split(2, 3) == (1, 1, 0)


@given(total=st.integers(0, 10_000), devices=st.integers(1, 360))
def test_shares_add_up_to_the_batch_and_differ_by_at_most_one(total: int, devices: int) -> None:
    shares = split(total, devices)
    assert len(shares) == devices
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
    assert list(shares) == sorted(shares, reverse=True)


def test_the_learning_rate_grows_with_the_scaling_of_the_job() -> None:
    assert learning_rate_factor(LearningRateScaling.NONE, 16) == 1
    assert learning_rate_factor(LearningRateScaling.LINEAR, 16) == 16
    assert learning_rate_factor(LearningRateScaling.SQRT, 16) == 4


@given(size=st.integers(1, 10_000), processes=st.integers(1, 64), steps=st.integers(1, 8))
def test_the_largest_portion_covers_the_largest_share(size: int, processes: int, steps: int) -> None:
    largest = largest_portion(size, processes=processes, accumulation_steps=steps)
    assert largest * steps * processes >= size
    assert (largest - 1) * steps * processes < size
