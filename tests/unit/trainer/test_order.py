"""The samples of a step: properties for any size, batch and world."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.batch import split
from muster_trainer.data import Order, permutation, weighted_share

SIZES = st.integers(1, 300)
BATCHES = st.integers(1, 350)
SEEDS = st.integers(0, 2**63 - 1)


@given(seed=SEEDS, size=SIZES, batch=BATCHES, epoch=st.integers(0, 5))
def test_an_epoch_takes_each_sample_once(seed: int, size: int, batch: int, epoch: int) -> None:
    order = Order(seed, size, batch)
    first = epoch * order.steps_per_epoch
    steps = [order.batch_indices(step) for step in range(first, first + order.steps_per_epoch)]
    assert sorted(np.concatenate(steps)) == list(range(size))
    assert all(len(step) == batch for step in steps[:-1])
    assert 1 <= len(steps[-1]) <= batch
    assert {order.epoch(step) for step in range(first, first + order.steps_per_epoch)} == {epoch}


@given(seed=SEEDS, size=SIZES, batch=BATCHES, runs=st.integers(1, 12), epoch=st.integers(0, 3))
def test_a_device_of_a_sharded_epoch_reads_only_its_own_run(seed: int, size: int, batch: int, runs: int, epoch: int) -> None:
    order = Order(seed, size, batch, runs)
    first = epoch * order.steps_per_epoch
    steps = [order.batch_indices(step) for step in range(first, first + order.steps_per_epoch)]
    assert [len(step) for step in steps] == [len(Order(seed, size, batch).batch_indices(step)) for step in range(len(steps))]
    assert sorted(np.concatenate(steps)) == list(range(size))
    own = [np.concatenate([np.array_split(step, runs)[device] for step in steps]) for device in range(runs)]
    assert list(np.concatenate([np.sort(run) for run in own])) == list(range(size))


def test_each_epoch_and_each_device_of_a_sharded_order_has_its_own_order() -> None:
    order = Order(5, 400, 40, 2)
    runs = [np.concatenate([np.array_split(order.batch_indices(step), 2)[device] for step in range(10)]) for device in (0, 1)]
    later = np.concatenate([np.array_split(order.batch_indices(step), 2)[0] for step in range(10, 20)])
    assert list(runs[0]) != list(later)
    assert list(runs[0]) != list(runs[1] - 200)
    assert list(runs[0]) != sorted(runs[0])


@given(size=SIZES, batch=BATCHES, step=st.integers(0, 900))
def test_the_samples_before_a_step_are_the_samples_of_earlier_steps(size: int, batch: int, step: int) -> None:
    order = Order(0, size, batch)
    assert order.samples_before(step) == sum(len(order.batch_indices(one)) for one in range(step))


@given(size=SIZES, world=st.integers(1, 40))
def test_the_shares_of_any_world_are_even_and_add_up_to_the_batch(size: int, world: int) -> None:
    indices = permutation(3, 0, size)
    shares = [weighted_share(indices, world, position) for position in range(world)]
    counted = [share[weights > 0] for share, weights in shares]
    assert list(np.concatenate(counted)) == list(indices)
    lengths = [len(share) for share in counted]
    assert max(lengths) - min(lengths) <= 1
    assert tuple(lengths) == split(size, world), "the contract shares a batch out in another way"
    assert all(len(share) == len(weights) >= 1 for share, weights in shares)
    assert sum(weights.sum() for _, weights in shares) == size


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@pytest.mark.parametrize(
    ("seed", "epoch", "expected"),
    [(0, 0, [0, 2, 1, 5, 4, 3, 6, 7]), (7, 2, [6, 7, 4, 0, 1, 5, 3, 2])],
)
def test_the_order_is_the_same_with_every_version(seed: int, epoch: int, expected: list[int]) -> None:
    assert permutation(seed, epoch, 8).tolist() == expected


@given(size=SIZES, batch=BATCHES, step=st.integers(0, 500), every=st.none() | st.integers(1, 50))
def test_asynchronous_batches_end_at_the_next_checkpoint_or_epoch(size: int, batch: int, step: int, every: int | None) -> None:
    order = Order(0, size, batch)
    stops = [
        later
        for later in range(step + 1, step + 1 + order.steps_per_epoch)
        if later % order.steps_per_epoch == 0 or (every and later % every == 0)
    ]
    assert order.boundary(step, every) == stops[0]
