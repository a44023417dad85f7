"""Saves during the training: a world of two ranks as threads. The test decides when each part is written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from muster_contract.errors import PeerLost, StorageUnavailable, TrainerError
from muster_contract.events import CommitReason, Event, PhaseEvent, encode_event
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, select
from muster_trainer.checkpoint.manifest import read_verified
from muster_trainer.checkpoint.selection import valid_commits
from muster_trainer.host.memory import most_for_snapshots, room_for_snapshots, spare_bytes
from muster_trainer.training import saving
from muster_trainer.training.engine import Part
from muster_trainer.training.interval import SaveInterval
from muster_trainer.training.saving import Saver
from tests.support.waiting import wait_until

T = TypeVar("T")
SECONDS = 30
FENCE = Fence(datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC), 0)
MANIFEST = Manifest(0, 0, 0, 0, 2, "DDP", 0, {}, {}, CommitReason.PERIODIC, "now")


@dataclass
class Rank:
    """An engine whose state is a number. It writes once `may_write` is set, and raises `error`."""

    rank: int
    texts: list[str]
    together: threading.Barrier
    state: int = 0
    may_write: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    bytes: int = 1
    whole: bool = True
    sent: list[dict[str, Any]] = field(default_factory=list)

    def gather(self, text: str) -> list[str]:
        self.texts[self.rank] = text
        self.together.wait(SECONDS)
        texts = list(self.texts)
        self.together.wait(SECONDS)
        return texts

    def broadcast(self, text: str) -> str:
        return self.gather(text)[0]

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        held, copied = self.state, room >= self.bytes

        def write() -> tuple[list[str], int]:
            assert self.may_write.wait(SECONDS)
            if self.error:
                raise self.error
            (directory / f"part-{self.rank}").write_text(str(held if copied else self.state))
            return [f"part-{self.rank}"], held

        def finish(details: list[int]) -> list[str]:
            (directory / "index").write_text(str(details))
            return ["index"]

        return Part(copied, write, finish)

    def rescue(self, directory: Path) -> Part | None:
        return self.part_to_save(directory, room=0) if self.whole else None

    def emit(self, event: Event) -> None:
        self.sent.append(encode_event(event))

    def phase(self, phase: str) -> None:
        self.emit(PhaseEvent(phase=phase))

    def say(self, text: str) -> None:
        pass


def ranks_of_two() -> list[Rank]:
    """The ranks of a world of two."""
    texts, together = ["", ""], threading.Barrier(2)
    return [Rank(rank, texts, together) for rank in (0, 1)]


def on_all(pool: ThreadPoolExecutor, ranks: Sequence[T], call: Callable[[T], Any]) -> list[Any]:
    """The result or the error of `call` on each rank, at the same time."""

    def attempt(one: T) -> Any:
        try:
            return call(one)
        except TrainerError as error:
            return error

    return list(pool.map(attempt, ranks, timeout=SECONDS))


class TwoRanks:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ranks = ranks_of_two()
        store = Store(directory, FENCE, keep=2)
        store.register(select(CheckpointSpec(str(directory)), FENCE))
        interval = SaveInterval(CheckpointSpec(str(directory)), job_created=FENCE.created, failures=0)
        self.savers = [Saver(store, rank, rank, interval) for rank in self.ranks]
        self.pool = ThreadPoolExecutor(2)

    def all(self, call: Callable[[Saver], Any]) -> list[Any]:
        return on_all(self.pool, self.savers, call)

    def begin(self, step: int) -> list[Any]:
        return self.all(lambda saver: saver.begin(replace(MANIFEST, step=step)))

    def save(self, step: int, reason: CommitReason = CommitReason.STOP) -> list[Any]:
        return self.all(lambda saver: saver.save(replace(MANIFEST, step=step, reason=reason)))

    def let_write(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].may_write.set()

    def wait_for_writers(self, *ranks: int) -> None:
        wait_until(lambda: not any(self.savers[rank].busy for rank in ranks), f"the writers of {ranks}", SECONDS)

    def step_until_idle(self) -> list[Any]:
        """Steps of a training, at which the ranks vote; ends when nothing is in flight, or a rank raises."""
        limit = threading.Event()
        for _ in range(SECONDS * 100):
            if not any(saver.busy for saver in self.savers):
                results = self.all(Saver.advance)
                if any(results) or not self.savers[0].in_flight:
                    return results
            limit.wait(0.01)
        raise AssertionError("the save stays in flight")

    @property
    def steps(self) -> list[int]:
        return [commit.step for commit in valid_commits(self.directory)]


@pytest.fixture
def world(tmp_path: Path) -> TwoRanks:
    return TwoRanks(tmp_path)


def test_training_continues_during_a_save_until_every_rank_has_written(world: TwoRanks) -> None:
    for rank in world.ranks:
        rank.state = 7
    assert world.begin(10) == [None, None]
    for rank in world.ranks:
        rank.state = 8
    world.let_write(0)
    world.wait_for_writers(0)
    assert world.savers[1].busy
    assert world.steps == []
    world.let_write(1)
    assert world.step_until_idle() == [None, None]
    (commit,) = valid_commits(world.directory)
    manifest = read_verified(commit.path)
    assert {name: (commit.path / name).read_text() for name in manifest.files} == {"part-0": "7", "part-1": "7", "index": "[7, 7]"}
    (commit,) = (event for event in world.ranks[0].sent if event["event"] == "commit")
    assert (commit["step"], commit["reason"], world.savers[1].step) == (10, "Periodic", 10)
    assert 0 < commit["blockedSeconds"] < commit["seconds"]


def test_a_save_waits_for_the_save_in_flight(world: TwoRanks) -> None:
    world.begin(10)
    second = ThreadPoolExecutor(1).submit(world.begin, 20)
    assert not second.done()
    world.let_write(0, 1)
    assert second.result(SECONDS) == [None, None]
    assert world.steps == [10]
    world.step_until_idle()
    assert world.steps == [10, 20]


def test_a_rank_without_memory_for_a_copy_writes_before_it_continues(world: TwoRanks) -> None:
    world.ranks[1].bytes = sys.maxsize
    begun = ThreadPoolExecutor(1).submit(world.begin, 10)
    world.let_write(0)
    assert not wait([begun], 0.2).done
    world.let_write(1)
    assert begun.result(SECONDS) == [None, None]
    world.step_until_idle()
    assert world.steps == [10]


@pytest.mark.parametrize(
    ("machine", "limit", "spare"),
    [("MemAvailable:   1000 kB", "max", 819_200), ("MemAvailable: 1000 kB", "500000", 320_000), ("", "500000", 320_000)],
)
def test_spare_memory_is_four_fifths_of_the_free_memory_of_machine_and_container(
    tmp_path: Path, machine: str, limit: str, spare: int
) -> None:
    for name, text in {"meminfo": machine, "memory.max": limit, "memory.current": "200000", "memory.stat": "inactive_file 100000"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert spare_bytes(tmp_path / "meminfo", tmp_path) == spare


@pytest.mark.parametrize(
    ("limit", "request_bytes", "most", "room"),
    [
        pytest.param("500000", None, 250_000, 160_000, id="limit"),
        pytest.param("500000", "300000", 250_000, 160_000, id="a limit counts more than a request"),
        pytest.param("max", "300000", 150_000, 80_000, id="request"),
        pytest.param("max", "0", 512_000, 204_800, id="no request"),
        pytest.param("max", None, 512_000, 204_800, id="none"),
        pytest.param("9000000", None, 512_000, 204_800, id="the machine has less"),
    ],
)
def test_snapshots_without_a_size_take_at_most_half_of_the_free_memory(
    tmp_path: Path, limit: str, request_bytes: str | None, most: int, room: int
) -> None:
    """Two replicas share the machine, so each has room for half of what is free there."""
    contents = {"meminfo": "MemAvailable: 1000 kB", "memory.max": limit, "memory.current": "200000", "memory.stat": "inactive_file 100000"}
    for name, text in contents.items():
        (tmp_path / name).write_text(f"{text}\n")
    environ = {} if request_bytes is None else {"MUSTER_MEMORY_REQUEST": request_bytes}
    assert most_for_snapshots(environ, tmp_path / "meminfo", tmp_path) == most
    assert room_for_snapshots(environ, pods=2, machine=tmp_path / "meminfo", container=tmp_path) == room


def test_a_rank_that_cannot_write_fails_the_save_on_every_rank(world: TwoRanks) -> None:
    world.begin(10)
    world.ranks[1].error = StorageUnavailable("no space is left")
    world.let_write(0, 1)
    failures = world.step_until_idle()
    assert [(type(failure), str(failure)) for failure in failures] == [(StorageUnavailable, "no space is left")] * 2
    assert world.steps == []


def test_a_stop_finishes_the_save_in_flight_and_saves_only_newer_steps(world: TwoRanks) -> None:
    world.begin(10)
    world.let_write(0, 1)
    assert world.save(10) == [None, None]
    assert world.save(13) == [None, None]
    assert world.steps == [10, 13]
    commits = [event["reason"] for event in world.ranks[0].sent if event["event"] == "commit"]
    assert commits == ["Periodic", "Stop"]


def test_a_stop_saves_after_the_save_in_flight_has_failed(world: TwoRanks) -> None:
    world.begin(10)
    world.ranks[0].error = StorageUnavailable("a moment's fault")
    world.let_write(0, 1)
    world.wait_for_writers(0)
    world.ranks[0].error = None
    assert world.save(13) == [None, None]
    assert world.steps == [13]


def test_a_world_that_was_replaced_during_a_save_does_not_commit(world: TwoRanks) -> None:
    world.begin(10)
    newer = Fence(FENCE.created, 1)
    Store(world.directory, newer, keep=2).register(select(CheckpointSpec(str(world.directory)), newer))
    world.let_write(0, 1)
    assert [type(failure) for failure in world.step_until_idle()] == [PeerLost, PeerLost]
    assert world.steps == []
    assert not list(world.directory.glob("step-*/COMMITTED"))


def test_a_part_that_rank_0_cannot_see_is_reported_as_unshared_storage(world: TwoRanks) -> None:
    world.begin(10)
    world.let_write(0, 1)
    world.wait_for_writers(0, 1)
    next(world.directory.glob("step-*/part-1")).unlink()
    failures = world.step_until_idle()
    assert all(isinstance(failure, StorageUnavailable) and "ReadWriteMany" in str(failure) for failure in failures)


def test_the_time_to_write_all_parts_is_estimated_from_the_part_of_this_rank(world: TwoRanks) -> None:
    world.begin(10)
    world.let_write(0, 1)
    world.step_until_idle()
    assert world.savers[0].seconds == 2 * world.savers[0]._own_seconds > 0  # two ranks wrote equal parts
    assert world.savers[1].seconds == world.savers[0].seconds


def rescue(world: TwoRanks, step: int, *, rank: int = 0) -> None:
    world.savers[rank].rescue(replace(MANIFEST, step=step, reason=CommitReason.PEER_LOST))


def test_of_the_ranks_that_have_lost_their_peers_one_saves(world: TwoRanks) -> None:
    world.let_write(0, 1)
    for rank in world.ranks:
        rank.state = 7
    world.all(lambda saver: saver.rescue(replace(MANIFEST, step=13, reason=CommitReason.PEER_LOST)))
    (commit,) = valid_commits(world.directory)
    manifest = read_verified(commit.path)
    [event] = (event for rank in world.ranks for event in rank.sent if event["event"] == "commit")
    [saved] = (rank.rank for rank in world.ranks if event in rank.sent)
    assert {name: (commit.path / name).read_text() for name in manifest.files} == {f"part-{saved}": "7", "index": "[7]"}
    assert (event["step"], event["path"], event["reason"], manifest.reason) == (13, commit.path.name, "PeerLost", "PeerLost")


def test_a_rank_that_does_not_have_all_of_the_state_leaves_the_rescue_to_another_one(world: TwoRanks) -> None:
    world.let_write(0, 1)
    world.ranks[0].whole = False
    rescue(world, 13)
    assert not list(world.directory.glob("step-*"))
    rescue(world, 13, rank=1)
    assert world.steps == [13]


def test_ranks_at_different_steps_save_both_and_the_newest_counts(world: TwoRanks) -> None:
    world.let_write(0, 1)
    rescue(world, 14, rank=1)
    rescue(world, 13)
    assert world.steps == [13, 14]
    assert select(CheckpointSpec(str(world.directory)), replace(FENCE, attempt=1)).step == 14


def test_a_rescue_abandons_the_save_in_flight(world: TwoRanks) -> None:
    for rank in world.ranks:
        rank.state = 7
    world.begin(10)
    world.let_write(0)
    world.ranks[0].state = 8
    rescue(world, 10)  # the step is the same, but the other rank may still write to the directory of the save
    (commit,) = valid_commits(world.directory)
    assert (commit.step, (commit.path / "part-0").read_text(), (commit.path / "index").read_text()) == (10, "8", "[8]")


def test_a_rescue_that_cannot_write_leaves_no_files(world: TwoRanks) -> None:
    world.let_write(0)
    world.ranks[0].error = StorageUnavailable("no space is left")
    with pytest.raises(StorageUnavailable, match="no space"):
        rescue(world, 13)
    assert (world.steps, list(world.directory.glob("step-*"))) == ([], [])
    world.let_write(1)
    rescue(world, 13, rank=1)  # the claim is gone as well
    assert world.steps == [13]


def test_a_rescue_does_not_wait_for_a_save_that_does_not_end(world: TwoRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "RESCUE_SECONDS", 0.1)
    world.begin(10)
    with pytest.raises(StorageUnavailable, match="a save does not end"):
        rescue(world, 13)
    world.let_write(0, 1)


def set_limits(monkeypatch: pytest.MonkeyPatch, *, claim: float) -> None:
    """The time in which a rank must save what it has claimed. A rescue may take much longer, so that a slow machine changes nothing."""
    monkeypatch.setattr("muster_trainer.checkpoint.rescue.SHORTEST_CLAIM", claim)
    monkeypatch.setattr("muster_trainer.checkpoint.rescue.RESCUE_SECONDS", 10.0 * SECONDS)


def claim(world: TwoRanks, step: int) -> Path:
    """Claims the rescue of a step for a rank that ends before it commits."""
    directory = world.savers[0].store.rescue_directory(step)
    assert world.savers[0].store.begin_rescue(directory)
    (directory / "part-0").write_text("a half")
    return directory


def test_another_rank_saves_the_step_if_the_rank_of_the_claim_does_not(world: TwoRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, claim=0.1)
    claimed = claim(world, 13)
    world.let_write(1)
    rescue(world, 13, rank=1)
    (commit,) = valid_commits(world.directory)
    assert (commit.step, read_verified(commit.path).reason) == (13, "PeerLost")
    assert (claimed / "part-0").read_text() == "a half"  # the rank of the claim may still write there
    newer = Store(world.directory, replace(FENCE, attempt=1), keep=2)
    newer.register(select(CheckpointSpec(str(world.directory)), newer.fence))
    newer.retain()
    assert [path.name for path in world.directory.glob("step-*")] == [commit.path.name]


def test_the_rank_of_the_claim_and_the_one_after_it_may_both_commit(world: TwoRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, claim=0.1)
    slow = world.pool.submit(rescue, world, 13)
    wait_until(lambda: list(world.directory.glob("step-*/CLAIM")), "the claim", SECONDS)
    world.let_write(1)
    rescue(world, 13, rank=1)
    world.let_write(0)
    slow.result(SECONDS)
    assert world.steps == [13, 13]
    assert {read_verified(commit.path).step for commit in valid_commits(world.directory)} == {13}


def test_no_other_rank_saves_the_step_if_the_rank_of_the_claim_commits(world: TwoRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, claim=SECONDS)
    slow = world.pool.submit(rescue, world, 13)
    wait_until(lambda: list(world.directory.glob("step-*/CLAIM")), "the claim", SECONDS)
    other = world.pool.submit(rescue, world, 13, rank=1)
    world.let_write(0, 1)
    slow.result(SECONDS)
    other.result(SECONDS)
    assert (world.steps, world.savers[1].step) == ([13], 13)


def test_another_rank_saves_at_once_if_the_rank_of_the_claim_fails(world: TwoRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, claim=SECONDS)
    waits, wait_for_commit = threading.Event(), Store.await_rescue
    monkeypatch.setattr(Store, "await_rescue", lambda *args, **named: waits.set() or wait_for_commit(*args, **named))
    failing = world.pool.submit(rescue, world, 13)
    wait_until(lambda: list(world.directory.glob("step-*/CLAIM")), "the claim", SECONDS)
    other = world.pool.submit(rescue, world, 13, rank=1)
    assert waits.wait(SECONDS)
    world.ranks[0].error = StorageUnavailable("no space is left")
    world.let_write(0, 1)
    with pytest.raises(StorageUnavailable):
        failing.result(SECONDS)
    other.result(SECONDS)
    assert world.steps == [13]


def test_no_other_rank_saves_the_step_if_it_has_no_time_for_that(world: TwoRanks) -> None:
    claim(world, 13)
    world.let_write(1)
    world.savers[1].seconds = 2.0  # so the rank of the claim may need 4 of the 5 seconds
    rescue(world, 13, rank=1)
    assert world.steps == []


def test_a_rank_of_an_older_world_does_not_rescue(world: TwoRanks) -> None:
    newer = Store(world.directory, replace(FENCE, attempt=1), keep=2)
    newer.register(select(CheckpointSpec(str(world.directory)), newer.fence))
    world.let_write(0)
    with pytest.raises(PeerLost, match="has taken over"):
        rescue(world, 13)
    assert world.steps == []
