"""Rescues by several ranks: which step they choose, and what they write. The ranks are threads, and their state is a number."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import PeerLost, StorageUnavailable, TrainerError
from muster_contract.events import CommitReason, Event, encode_event
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, select
from muster_trainer.checkpoint.manifest import read_verified
from muster_trainer.checkpoint.selection import valid_commits
from muster_trainer.training import saving
from muster_trainer.training.engine import Part
from muster_trainer.training.interval import SaveInterval
from muster_trainer.training.joint_rescue import Standing, able, choose_step, holds_all
from muster_trainer.training.saving import Saver
from tests.support.waiting import wait_until

SECONDS = 30
FENCE = Fence(datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC), 0)
MANIFEST = Manifest(0, 0, 0, 0, 4, "FSDP", 0, {}, {}, CommitReason.PEER_LOST, "now")
TWO_GROUPS = ("a", "b", "a", "b")


def standings(**states: str) -> dict[int, Standing]:
    """By rank ("r2"): a step, with a plus if the rank can advance."""
    return {int(rank[1:]): Standing(int(text.rstrip("+")), can_advance=text.endswith("+")) for rank, text in states.items()}


# the choice


@pytest.mark.parametrize(
    ("left", "step", "in_haste"),
    [
        pytest.param(standings(r1="7", r2="7", r3="7"), 7, 7, id="one is lost"),
        pytest.param(standings(r1="7", r2="7"), 7, 7, id="one of each group is left"),
        pytest.param(standings(r0="7", r1="7"), 7, 7, id="a group is left"),
        pytest.param(standings(r0="7", r2="7"), None, None, id="a shard is missing"),
        pytest.param(standings(r3="7"), None, None, id="others may come"),
        pytest.param(standings(r1="7+", r2="7+", r3="7+"), 7, 7, id="nobody has got the votes"),
        pytest.param(standings(r2="7+", r3="7+"), None, 7, id="another rank may have got the votes"),
        pytest.param(standings(r2="7+", r3="7"), 7, 7, id="a rank has not voted, so nobody has got the votes"),
        pytest.param(standings(r0="8", r2="7+", r3="7+"), 8, 8, id="one has got the votes"),
        pytest.param(standings(r0="8", r1="7+"), 8, 8, id="one has got the votes, and the other shard can follow"),
        pytest.param(standings(r0="8+", r1="7+"), 8, 8, id="a rank that could not follow is no step further"),
        pytest.param(standings(r0="8", r2="7+"), None, None, id="the other shard may come"),
        pytest.param(standings(r0="8", r2="7", r3="7"), None, 7, id="a rank has begun to change its state"),
    ],
)
def test_the_newest_step_with_all_shards_counts(left: Mapping[int, Standing], step: int | None, in_haste: int | None) -> None:
    assert choose_step(left, TWO_GROUPS, in_haste=False) == step
    assert choose_step(left, TWO_GROUPS, in_haste=True) == in_haste


@given(groups=st.integers(2, 3), size=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_all_ranks_choose_one_step_in_any_order_of_their_notes(groups: int, size: int, seed: int) -> None:
    """Ranks are lost in a step, before or between its votes. No rank that is left loses a step that it has finished, if all shards are
    left, and no rank chooses a step that others do not."""
    drawn = random.Random(seed)
    world = groups * size
    shards = [f"shard {rank % size}" for rank in range(world)]
    lost = drawn.sample(range(world), drawn.randint(1, world - 1))
    voted = drawn.random() < 0.7  # all ranks have sent their votes
    states = {}
    for rank in set(range(world)) - set(lost):
        if voted and drawn.random() < 0.5:
            states[rank] = Standing(8, can_advance=False)
        else:
            states[rank] = Standing(7, can_advance=voted or drawn.random() < 0.5)
    if not voted and all(each.can_advance for each in states.values()) and len(lost) > 1:
        return  # cannot be told from a world in which another rank has the votes: they choose in haste
    newest = max(each.step for each in states.values())
    order = drawn.sample(sorted(states), len(states))
    views = [{rank: states[rank] for rank in order[:count]} for count in range(1, len(order) + 1)]
    chosen = [step for view in views if (step := choose_step(view, shards, in_haste=False)) is not None]
    assert set(chosen) <= {newest}
    complete = holds_all(states, shards)
    assert choose_step(states, shards, in_haste=True) == (newest if complete else None)
    if complete:
        assert holds_all(able(states, newest), shards)


# the ranks


@dataclass
class Rank:
    """An engine that has lost its peers. It writes once `may_write` is set, and raises `error`."""

    rank: int
    shards: Sequence[str]
    state: int = 7
    can_advance: bool = False
    skips: list[bool] = field(default_factory=list)
    is_connected: bool = True
    may_write: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    sent: list[dict[str, Any]] = field(default_factory=list)

    def disconnect(self) -> None:
        self.is_connected = False

    def advance(self, *, skip: bool) -> None:
        self.skips.append(skip)
        self.state += 1

    def rescue(self, directory: Path) -> Part:
        name = f"rank-{self.rank:05d}.safetensors"

        def write() -> tuple[list[str], str]:
            assert self.may_write.wait(SECONDS)
            (directory / name).write_text(f"{self.shards[self.rank]} of {self.state}")
            if self.error:
                raise self.error
            return [name], self.shards[self.rank]

        def finish(details: list[str]) -> list[str]:
            (directory / "index").write_text(json.dumps(details))
            return ["index"]

        return Part(False, write, finish)

    def emit(self, event: Event) -> None:
        self.sent.append(encode_event(event))

    def say(self, text: str) -> None:
        pass


class World:
    """Four ranks with two shards, each on two of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ranks = [Rank(rank, TWO_GROUPS) for rank in range(4)]
        self.store = Store(directory, FENCE, keep=2)
        self.store.register(select(CheckpointSpec(str(directory)), FENCE))
        interval = SaveInterval(CheckpointSpec(str(directory)), job_created=FENCE.created, failures=0)
        engines: list[Any] = self.ranks
        self.savers = [Saver(self.store, engine, engine, interval) for engine in engines]
        self.pool = ThreadPoolExecutor(4)
        for rank in self.ranks:
            rank.may_write.set()

    def rescue(self, rank: int, *, skipped: bool = False, is_saved: bool = False) -> TrainerError | None:
        engine = self.ranks[rank]
        own = Standing(engine.state, can_advance=engine.can_advance, skipped=skipped)
        try:
            self.savers[rank].rescue_together(own, lambda step: replace(MANIFEST, step=step), is_saved=is_saved)
        except TrainerError as error:
            return error
        return None

    def all(self, *ranks: int, **named: bool) -> list[TrainerError | None]:
        return list(self.pool.map(lambda rank: self.rescue(rank, **named), ranks, timeout=SECONDS))

    def saved(self) -> tuple[int, str, set[str]]:
        """The step of the only commit, its folder, and the parts in it."""
        (commit,) = valid_commits(self.directory)
        manifest = read_verified(commit.path)
        texts = {(commit.path / name).read_text() for name in manifest.files if name != "index"}
        assert sorted(json.loads((commit.path / "index").read_text())) == sorted(text.split()[0] for text in texts)
        events = [event for rank in self.ranks for event in rank.sent]
        assert [(event["event"], event["step"], event["reason"]) for event in events] == [("commit", commit.step, "PeerLost")]
        return commit.step, commit.path.name, texts


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the seconds of a claim and of a rescue."""

    def set_limits(*, claim: float = SECONDS, rescue: float = 10.0 * SECONDS) -> None:
        monkeypatch.setattr(saving, "SHORTEST_CLAIM", claim)
        monkeypatch.setattr(saving, "RESCUE_SECONDS", rescue)

    set_limits()
    return set_limits


BOTH = {"a of 7", "b of 7"}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("ranks", [(0, 1, 2), (1, 2, 3), (0, 1), (0, 3), (1, 2)])
def test_ranks_with_all_shards_save_their_step(world: World, ranks: tuple[int, ...]) -> None:
    assert world.all(*ranks) == [None] * len(ranks)
    assert world.saved() == (7, f"step-00000007-{FENCE}-rescue", BOTH)
    assert [world.savers[rank].step for rank in ranks] == [7] * len(ranks)
    assert not any(world.ranks[rank].is_connected for rank in ranks)


@pytest.mark.usefixtures("slow")
def test_ranks_that_lack_the_last_votes_follow_one_that_has_them(world: World) -> None:
    world.ranks[0].state = 8
    world.ranks[2].can_advance = world.ranks[3].can_advance = True
    behind = [world.pool.submit(world.rescue, rank) for rank in (2, 3)]
    wait_until(lambda: len(list(world.directory.glob("step-00000007-*/standing-*"))) == 2, "the ranks behind", SECONDS)
    assert world.rescue(0) is None
    assert [each.result(SECONDS) for each in behind] == [None, None]
    assert world.saved() == (8, f"step-00000008-{FENCE}-rescue", {"a of 8", "b of 8"})
    assert (world.ranks[3].skips, world.ranks[2].skips) == ([False], [False])


@pytest.mark.usefixtures("slow")
def test_ranks_that_follow_leave_out_an_update_that_was_left_out(world: World) -> None:
    world.ranks[0].state = 8
    world.ranks[3].can_advance = True
    ahead = world.pool.submit(world.rescue, 0, skipped=True)
    assert (world.rescue(3), ahead.result(SECONDS)) == (None, None)
    assert world.ranks[3].skips == [True]


@pytest.mark.usefixtures("slow")
def test_nothing_is_written_if_the_step_is_saved_already(world: World) -> None:
    for rank in (0, 1, 2):
        world.ranks[rank].can_advance = True
    assert world.all(0, 1, 2, is_saved=True) == [None] * 3
    assert not list(world.directory.glob("step-*/rank-*"))


@pytest.mark.parametrize("ranks", [(0, 2), (1,)])
def test_without_all_shards_nothing_is_committed_and_the_error_says_so(
    world: World, ranks: tuple[int, ...], slow: Callable[..., None]
) -> None:
    slow(claim=0.1, rescue=1.0)
    errors = world.all(*ranks)
    assert all(isinstance(error, PeerLost) and "1 of 2 shards" in str(error) for error in errors)
    assert valid_commits(world.directory) == []
    newer = Store(world.directory, replace(FENCE, attempt=1), keep=2)
    newer.register(select(CheckpointSpec(str(world.directory)), newer.fence))
    newer.retain()
    assert not list(world.directory.glob("step-*"))


def test_another_rank_writes_a_shard_if_the_first_one_is_lost_meanwhile(world: World, slow: Callable[..., None]) -> None:
    slow(claim=0.1)
    world.ranks[0].may_write.clear()
    stuck = world.pool.submit(world.rescue, 0)
    wait_until(lambda: list(world.directory.glob("step-*/standing-*")), "the first rank", SECONDS)
    assert world.all(1, 2) == [None, None]
    assert world.saved()[2] == BOTH
    assert not list(world.directory.glob("step-*/part-00000.json"))
    world.ranks[0].may_write.set()
    assert stuck.result(SECONDS) is None  # it finds the commit
    assert world.saved()[2] == BOTH


def test_another_rank_writes_a_shard_if_the_first_one_cannot(world: World, slow: Callable[..., None]) -> None:
    slow(claim=0.1)
    world.ranks[0].error = StorageUnavailable("no space is left")
    errors = world.all(0, 1, 2)
    assert [type(error) for error in errors] == [StorageUnavailable, type(None), type(None)]
    assert world.saved()[2] == BOTH
    assert not list(world.directory.glob("step-*/rank-00000*"))


def test_the_ranks_save_again_elsewhere_if_the_one_that_commits_is_lost(world: World, slow: Callable[..., None]) -> None:
    slow(claim=0.2)
    folder = world.store.rescue_directory(7)
    assert world.store.begin_rescue(folder)  # and nothing follows
    assert world.all(0, 1, 2) == [None] * 3
    assert world.saved() == (7, f"step-00000007-{FENCE}-rescue-1", BOTH)


@pytest.mark.usefixtures("slow")
def test_an_older_attempt_writes_nothing(world: World) -> None:
    newer = Store(world.directory, replace(FENCE, attempt=1), keep=2)
    newer.register_step(0)
    errors = world.all(0, 1, 2)
    assert all(isinstance(error, PeerLost) and "has taken over" in str(error) for error in errors)
    assert not list(world.directory.glob("step-*"))


def test_an_attempt_that_becomes_older_meanwhile_commits_nothing(world: World, slow: Callable[..., None]) -> None:
    slow(claim=0.1, rescue=2.0)
    for rank in world.ranks:
        rank.may_write.clear()
    together = [world.pool.submit(world.rescue, rank) for rank in (0, 1, 3)]
    wait_until(lambda: len(list(world.directory.glob("step-*/standing-*"))) == 3, "all ranks", SECONDS)
    Store(world.directory, replace(FENCE, attempt=1), keep=2).register_step(0)
    for rank in world.ranks:
        rank.may_write.set()
    assert {type(each.result(SECONDS)) for each in together} == {PeerLost}
    assert not list(world.directory.glob("step-*/COMMITTED"))


@pytest.mark.usefixtures("slow")
def test_notes_that_cannot_be_read_are_left_out(world: World) -> None:
    folder = world.store.rescue_directory(7)
    world.store.leave_note(folder, "standing", 3, b'{"step": 7, "canAdv')
    world.store.leave_note(folder, "standing", 9, b'{"step": 7, "canAdvance": false}')
    (folder / "standing-x.json").write_text("{}")
    assert world.all(0, 1) == [None, None]
    assert world.saved()[2] == BOTH
