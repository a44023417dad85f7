"""The place in the data: after any batch, a new loader goes on with the samples that follow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster_training as muster
from muster_training import session
from muster_training.data import data_loader

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
EPOCHS = 3


def loader_of(dataset: Any, batch: int, *, rank: int = 0, world: int = 1, place: Any = None, **options: Any) -> Any:
    """The loader of a new process with this rank, which goes on at `place`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world))
        session.current.cache_clear()
        loader = data_loader(dataset, batch, **options)
    session.current.cache_clear()
    if place:
        loader.load_state_dict(place)
    return loader


def rest_of(loader: Any, epochs: int = EPOCHS) -> Iterator[list[int]]:
    """The batches of all epochs that are left."""
    for _ in range(loader.epoch, epochs):
        for batch in loader:
            yield batch.tolist()


def samples(batches: Any) -> list[int]:
    return sorted(chain.from_iterable(batches))


@given(st.data(), st.integers(1, 4), st.integers(1, 5), st.integers(0, 40), st.booleans(), st.booleans())
def test_after_any_batch_a_loader_goes_on_with_the_samples_that_follow(
    data: st.DataObject, world: int, batch: int, more: int, shuffle: bool, drop_last: bool
) -> None:
    given = {"world": world, "shuffle": shuffle, "drop_last": drop_last, "seed": 5}
    dataset = torch.arange(world + more)
    undisturbed = [list(rest_of(loader_of(dataset, batch, rank=rank, **given))) for rank in range(world)]
    counts = {len(batches) for batches in undisturbed}
    assert len(counts) == 1, "all ranks have as many batches"
    done = data.draw(st.integers(0, counts.pop()))
    places = []
    for rank, batches in enumerate(undisturbed):
        first = loader_of(dataset, batch, rank=rank, **given)
        assert list(islice(rest_of(first), done)) == batches[:done]
        places.append(first.state_dict())
        assert list(rest_of(loader_of(dataset, batch, rank=rank, place=places[-1], **given))) == batches[done:]
    assert all(place == places[0] for place in places), "each rank can save the place for all"


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 40), st.booleans())
def test_each_epoch_has_each_sample_once_in_an_order_of_its_own(world: int, batch: int, more: int, shuffle: bool) -> None:
    size = world + more
    ranks = [loader_of(torch.arange(size), batch, rank=rank, world=world, shuffle=shuffle) for rank in range(world)]
    orders = []
    for epoch in range(EPOCHS):
        assert all(loader.epoch == epoch for loader in ranks)
        batches = [[each.tolist() for each in loader] for loader in ranks]
        assert [len(each) for each in batches] == [len(loader) for loader in ranks]
        assert all(each for each in chain.from_iterable(batches)), "no batch is empty"
        orders.append(list(chain.from_iterable(chain.from_iterable(batches))))
        assert sorted(orders[-1]) == list(range(size))
    if shuffle and size > 10:
        assert orders[0] != orders[1] != orders[2]


def test_fewer_ranks_go_on_with_the_samples_that_are_left_of_the_epoch() -> None:
    before = [loader_of(torch.arange(50), 3, rank=rank, world=3, shuffle=True) for rank in range(3)]
    done = [list(islice(rest_of(loader), 2)) for loader in before]
    after = [loader_of(torch.arange(50), 4, rank=rank, world=2, shuffle=True, place=before[0].state_dict()) for rank in range(2)]
    assert samples(chain(*done, *(rest_of(loader, epochs=1) for loader in after))) == list(range(50))


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    """Samples with random numbers. Each worker has a part."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        first, apart = (worker.id, worker.num_workers) if worker else (0, 1)
        for sample in range(first, 41, apart):
            noise = int(torch.randint(1000, ())) if worker else 0
            yield 1000 * (100 * self.epoch + sample) + noise


@pytest.mark.parametrize("dataset", [torch.arange(41), Stream()], ids=["map", "stream"])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "prefetch_factor": 3}], ids=["no worker", "two workers"])
def test_batches_that_workers_have_read_ahead_do_not_count(dataset: Any, workers: dict[str, Any]) -> None:
    undisturbed = list(rest_of(loader_of(dataset, 4, **workers)))
    assert len(set(chain.from_iterable(undisturbed))) == (41 if isinstance(dataset, torch.Tensor) else 3 * 41)
    done = len(undisturbed) // 2
    first = loader_of(dataset, 4, **workers)
    assert list(islice(rest_of(first), done)) == undisturbed[:done]
    torch.manual_seed(1)
    assert list(rest_of(loader_of(dataset, 4, place=first.state_dict(), **workers))) == undisturbed[done:]


def test_a_resume_draws_no_random_numbers_of_the_program() -> None:
    first = loader_of(Stream(), 4)
    next(rest_of(first))
    second = loader_of(Stream(), 4, place=first.state_dict())
    torch.manual_seed(1)
    expected = torch.get_rng_state()
    next(rest_of(second))
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [1]}, "sampler is chosen by data_loader; write shuffle and seed"),
        ({"world": 9}, "8 samples, fewer than the 9 ranks"),
        ({"batch": 0}, "batch_size must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_arguments_that_have_no_place_in_the_data_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(muster.UserError, match=message):
        loader_of(torch.arange(8), **{"batch": 2, **options})


def test_the_place_in_a_stream_is_refused_in_a_world_of_another_size() -> None:
    first = loader_of(Stream(), 4, world=2)
    next(rest_of(first))
    with pytest.raises(muster.UserError, match="is that of 2 ranks, and there are 3"):
        loader_of(Stream(), 4, world=3, place=first.state_dict())
