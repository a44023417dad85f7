"""When a process that has lost a peer goes on in the next attempt, with which state, and what its supervisor does with it meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_contract.codes import ExitCode
from muster_contract.errors import ConnectionLost, PeerLost, StorageUnavailable
from muster_contract.events import ErrorEvent, ResumeSource, Step, Waiting
from muster_contract.reports import Reply
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Store, select
from muster_trainer.checkpoint.selection import registrations
from muster_trainer.host.events import Events
from muster_trainer.supervisor import survivors
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.output_tail import NEVER
from muster_trainer.supervisor.processes import Process
from muster_trainer.supervisor.survivors import Survivors
from muster_trainer.training import resume_point, survivor
from muster_trainer.training.checkpoints import Checkpoints
from muster_trainer.training.recovery.ladder import Ladder
from muster_trainer.training.recovery.memory import Memory
from muster_trainer.training.recovery.survivors import Survivors as Rung
from muster_trainer.training.resume_point import ResumePoint, choose_and_register
from muster_trainer.training.survivor import Survivor, SurvivorSteps
from tests.unit.trainer.quick_run import run_of
from tests.unit.trainer.test_checkpoint_store import begin_attempt, fence, save

# the training process: whether it goes on


class Broken:
    """A rank at step 13 whose world has lost a member. `next_world`: another one follows."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        done: int | None = 13,
        survives: bool = True,
        stops: bool = False,
        has_supervisor: bool = True,
        next_world: bool = True,
    ) -> None:
        reader, self.orders = os.pipe()
        monkeypatch.setenv("MUSTER_ATTEMPT", "3")
        if has_supervisor:
            monkeypatch.setenv("MUSTER_ORDERS_FD", str(reader))
        self.saves = 0
        self.next_world = next_world
        survival = SimpleNamespace(abandon_world=self._abandon, survivor_steps=None)
        engine = SimpleNamespace(rank=1, survival=survival if survives else None, disconnect=lambda: None)
        self.run = run_of(engine, done=done, is_stopping=stops)
        self.survivors = Rung(self.run, self._save)

    def _abandon(self) -> None:
        self.run.sent.append("abandon world")
        if self.next_world:
            os.write(self.orders, json.dumps({"world": {"MUSTER_ATTEMPT": "4"}}).encode() + b"\n")
        os.close(self.orders)

    def _save(self) -> None:
        self.saves += 1


LOST = ConnectionLost("connection closed")


def test_a_process_leaves_the_broken_world_and_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch)
    assert broken.survivors.keep(LOST)
    abandoned, step, waits = broken.run.sent
    assert (abandoned, step.step, waits) == ("abandon world", 13, Waiting(step=13))
    assert (os.environ["MUSTER_ATTEMPT"], broken.saves) == ("4", 0)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        pytest.param(PeerLost("a port is in use"), {}, id="it is not the connection"),
        pytest.param(LOST, {"survives": False}, id="another strategy"),
        pytest.param(LOST, {"done": None}, id="no state"),
        pytest.param(LOST, {"stops": True}, id="it stops"),
        pytest.param(LOST, {"has_supervisor": False}, id="it may not wait"),
    ],
)
def test_a_process_ends_where_a_new_one_is_better(error: PeerLost, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch, **state)
    assert not broken.survivors.keep(error)
    assert broken.run.sent == []


def test_a_process_ends_if_no_world_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch, next_world=False)
    assert not broken.survivors.keep(LOST)
    assert broken.saves == 1


# the training process: the wait


class Waits:
    """A process of attempt 3 that waits, with the pipe of its supervisor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, self.orders = os.pipe()
        monkeypatch.setenv("MUSTER_ORDERS_FD", str(reader))
        monkeypatch.setenv("MUSTER_ATTEMPT", "3")
        monkeypatch.setattr(survivor, "RESCUE_AFTER", 0.05)
        monkeypatch.setattr(survivor, "WAIT_SECONDS", 20.0)
        self.sent: list[Any] = []
        events = Events(None, 1)
        monkeypatch.setattr(events, "emit", self.sent.append)
        self.stop: Any = SimpleNamespace(requested=False, on_request=lambda: None)
        self.disconnects: list[str] = []
        self.rescues: list[str] = []
        self.survivor = Survivor(events, self.stop, attempt=3, disconnect=lambda: self.disconnects.append(os.environ["MUSTER_ATTEMPT"]))

    def order(self, **content: object) -> None:
        os.write(self.orders, json.dumps(content).encode() + b"\n")

    def wait(self, *, last: int | None = 13) -> bool:
        step = None if last is None else Step(step=last)
        return self.survivor.wait(done=13, last=step, message="connection closed", rescue=self.rescue)

    def rescue(self) -> None:
        self.rescues.append(os.environ["MUSTER_ATTEMPT"])

    def join(self, until: Callable[[], bool], *, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        with self.survivor.joining(self.rescue) as meanwhile:
            while not until():
                meanwhile()
                assert time.monotonic() < deadline, f"the wait did not end in {seconds} s"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    process = Waits(monkeypatch)
    yield process
    os.close(process.orders)


def test_a_process_takes_over_the_next_world(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivor, "RESCUE_AFTER", survivor.WAIT_SECONDS)
    waits.order(world={"MUSTER_ATTEMPT": "5", "MASTER_PORT": "4005"})
    assert waits.wait()
    assert (os.environ["MUSTER_ATTEMPT"], os.environ.pop("MASTER_PORT"), waits.rescues) == ("5", "4005", [])
    step, error, waiting = waits.sent
    assert isinstance(error, ErrorEvent)
    assert (step, error.code, waiting) == (Step(step=13), ExitCode.PEER_LOST, Waiting(step=13))


def test_a_process_that_waits_long_saves_in_the_attempt_before(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "rescue", lambda: (waits.rescues.append("3"), waits.order(world={"MUSTER_ATTEMPT": "5"})))
    assert waits.wait()
    assert waits.rescues == ["3"]


def test_a_stop_ends_the_wait_at_once_after_a_rescue(waits: Waits) -> None:
    waits.stop.requested = True
    began = time.monotonic()
    assert not waits.wait()
    assert time.monotonic() < began + 10
    assert waits.rescues == ["3"]
    assert not waits.survivor.may_wait


def test_a_process_waits_for_so_many_worlds_only(waits: Waits) -> None:
    for attempt in range(4, 4 + 64):
        assert waits.survivor.may_wait
        waits.order(world={"MUSTER_ATTEMPT": str(attempt)})
        assert waits.wait()
    assert not waits.survivor.may_wait


def test_an_order_to_leave_ends_the_wait_for_other_ranks_of_that_world(waits: Waits) -> None:
    waits.order(leave=4)
    with pytest.raises(ConnectionLost, match="attempt 3 is not waited for"):
        waits.join(lambda: waits.order(leave=3) or False)  # type: ignore[func-returns-value]
    assert set(waits.disconnects) == {"3"}


def test_a_stop_ends_the_wait_for_other_ranks(waits: Waits) -> None:
    def stopped() -> bool:
        waits.stop.requested = True
        waits.stop.on_request()
        return False

    with pytest.raises(ConnectionLost):
        waits.join(stopped)
    assert waits.disconnects == ["3"]


def test_a_process_that_waits_long_for_other_ranks_saves_once(waits: Waits) -> None:
    turns = iter(range(10**9))
    waits.join(lambda: bool(waits.rescues) and next(turns) > 100)
    assert waits.rescues == ["3"]


# the state that counts


def joined(directory: Path, *steps: int | None, resume: str = "Auto", later: int = 0) -> ResumePoint:
    """The choice of rank 0 of attempt 9, whose ranks have the states of these steps."""
    store = Store(directory, fence(9, later=later), 2)
    return choose_and_register(
        CheckpointSpec(str(directory), resume=resume),
        store,
        ResumePoint(step=SurvivorSteps(steps).newest or 0, source=ResumeSource.SURVIVORS),
        {},
    )


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([], (ResumeSource.SURVIVORS, 13)),
        ([10], (ResumeSource.SURVIVORS, 13)),
        ([13], (ResumeSource.SURVIVORS, 13)),
        ([10, 15], (ResumeSource.STORAGE, 15)),
    ],
)
def test_the_newest_of_commits_and_survivors_counts(commits: list[int], expected: tuple[ResumeSource, int], tmp_path: Path) -> None:
    store = begin_attempt(tmp_path, 0)
    for step in commits:
        save(store, step)
    point = joined(tmp_path, 12, None, 13)
    assert (point.source, point.step) == expected
    assert registrations(tmp_path)[fence(9)] == point.step


def test_a_late_commit_of_an_older_world_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = begin_attempt(tmp_path, 0)
    save(older, 10)
    Store(tmp_path, fence(1), 2).register(select(CheckpointSpec(str(tmp_path)), fence(1)))
    with monkeypatch.context() as late:  # it has checked its fence before that
        late.setattr(Store, "_check_fence", lambda store: None)
        save(older, 20)
    point = joined(tmp_path, 13, None)
    assert (point.source, point.step, registrations(tmp_path)[fence(9)]) == (ResumeSource.SURVIVORS, 13, 13)


def test_no_checkpoint_is_verified_if_the_state_in_memory_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verified(*_: object) -> None:
        raise AssertionError("a checkpoint is verified")

    save(begin_attempt(tmp_path, 0), 10)
    monkeypatch.setattr(resume_point, "select", verified)
    memory = ResumePoint(step=13, source=ResumeSource.MEMORY)
    point = choose_and_register(CheckpointSpec(str(tmp_path)), Store(tmp_path, fence(9), 2), memory, {})
    assert (point.source, point.step, point.committed_step) == (ResumeSource.MEMORY, 13, 10)
    assert joined(tmp_path, 13, None).source is ResumeSource.SURVIVORS


def test_survivors_go_on_while_the_storage_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("no route")

    monkeypatch.setattr(resume_point, "newest_step", away)
    point = joined(tmp_path, 13, None)
    assert (point.source, point.step, point.storage_error) == (ResumeSource.SURVIVORS, 13, "no route")


def test_commits_of_another_job_do_not_count_for_a_job_of_its_own(tmp_path: Path) -> None:
    save(begin_attempt(tmp_path, 0), 15)
    point = joined(tmp_path, 13, None, resume="Never", later=60)
    assert (point.source, point.step) == (ResumeSource.SURVIVORS, 13)


class Joins:
    """A rank at step 13 that joins the world of attempt 4, after attempt 3. `rescues` has (step, attempt of the fence)."""

    def __init__(self, wait: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch) -> None:
        replica = {"JOB": "default/test", "JOB_UID": "uid", "JOB_CREATED": "2026-11-21T11:16:14Z", "STRATEGY": "DDP", "ROLE": "worker"}
        pod = {"INDEX": "1", "ATTEMPT": "4", "POD_NAME": "one", "POD_UID": "uid", "PROCESSES": "1", "TRAINER": "{}"}
        for name, value in {**replica, **pod}.items():
            monkeypatch.setenv(f"MUSTER_{name}", value)
        monkeypatch.setattr(survivor, "RESCUE_AFTER", -1.0)  # each wait is long
        self.rescues: list[tuple[int, int]] = []
        survival = SimpleNamespace(rejoin=lambda done, meanwhile: wait(meanwhile), survivor_steps=None)
        engine = SimpleNamespace(rank=1, rescues=True, memory=None, survival=survival, disconnect=lambda: None, fingerprint=dict)
        self.run = run_of(engine, attempt=3)
        checkpoints = Checkpoints(self.run, make_saver=self._saver)
        self.ladder = Ladder(self.run, Memory(self.run), checkpoints)
        self._survivors = Rung(self.run, self.ladder.save_without_peers)
        self._enter_attempt = checkpoints.enter_attempt

    def _saver(self, run: Any) -> Any:
        saver: Any = SimpleNamespace(step=None, seconds=0.0, break_off=lambda: None)
        attempt = run.env.attempt

        def rescue(manifest: Any) -> None:
            self.rescues.append((manifest[0], attempt))
            saver.step = manifest[0]

        saver.rescue = rescue
        return saver

    def join(self) -> None:
        self._survivors.join(self._enter_attempt)


def test_a_rescue_has_the_fence_of_the_world_that_a_process_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may have registered that attempt, so an older fence may not save. The step is saved once."""
    joins = Joins(lambda meanwhile: meanwhile(), monkeypatch)
    joins.join()
    joins.ladder.save_without_peers()
    assert joins.rescues == [(13, 4)]


def test_a_rescue_after_a_join_that_failed_has_the_fence_of_that_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(meanwhile: Callable[[], None]) -> None:
        raise LOST

    joins = Joins(lose, monkeypatch)
    with pytest.raises(ConnectionLost):
        joins.join()
    joins.ladder.save_without_peers()
    assert joins.rescues == [(13, 4)]


def test_any_error_in_a_join_leaves_the_place_to_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(meanwhile: Callable[[], None]) -> None:
        raise RuntimeError("no device")

    with pytest.raises(PeerLost, match="cannot go on in attempt 4: RuntimeError: no device"):
        Joins(fail, monkeypatch).join()


def test_a_step_that_the_attempt_before_saved_is_not_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = Joins(lambda meanwhile: meanwhile(), monkeypatch)
    joins.ladder.save_without_peers()
    joins.join()
    assert joins.rescues == [(13, 3)]


def test_a_process_reports_no_step_that_it_has_no_longer() -> None:
    """It did step 14 in a world whose other ranks resume at step 13."""
    run = run_of(SimpleNamespace(rank=0, memory=None, survival=None, disconnect=lambda: None), done=14)
    Ladder(run, Memory(run), Checkpoints(run, make_saver=lambda _: None)).restore(ResumePoint(step=13))
    assert run.last is None


# the supervisor


class Fake(Process):
    """A process that ends as soon as it gets a signal."""

    log: list[str]
    reads_orders: int

    def send(self, number: signal.Signals) -> None:
        self.log.append(f"{self.rank} saves and ends")
        self.wait_status = 0


def waiting(rank: int, log: list[str]) -> Fake:
    reads_orders, orders = os.pipe()
    stdout, stderr, events = (os.open(os.devnull, os.O_RDONLY) for _ in range(3))
    process = Fake(rank, 10**7 + rank, stdout, stderr, events, orders=orders, waiting=True)
    process.log, process.reads_orders = log, reads_orders
    return process


ENV = {"MUSTER_ATTEMPT": "3", "WORLD_SIZE": "2"}


def launch(rank: int, **changed: str) -> Launch:
    return Launch(rank, ("python",), {**ENV, "RANK": str(rank), **changed})


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens. A reaper of children would take those of other tests."""
    monkeypatch.setattr(survivors, "reap", lambda processes: [])
    monkeypatch.setattr(survivors, "descendants", lambda pid: set())
    return []


def test_processes_of_the_same_world_go_on_and_others_have_saved_before_it_begins(log: list[str]) -> None:
    waiting_processes = Survivors()
    for rank in (0, 1):
        waiting_processes.add(waiting(rank, log), launch(rank))
    assert waiting_processes.pids == {10**7, 10**7 + 1}
    continuing = waiting_processes.hand_over([launch(0, MUSTER_ATTEMPT="4"), launch(1, WORLD_SIZE="3", MUSTER_ATTEMPT="4")])
    log.append("the next world begins")
    assert (list(continuing), log) == ([0], ["1 saves and ends", "the next world begins"])
    assert (continuing[0].waiting, waiting_processes.pids) == (False, set())
    continuing[0].close(continuing[0].orders, continuing[0].events, continuing[0].stdout, continuing[0].stderr)


def test_a_process_that_died_while_it_waited_is_started_again(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(processes: list[Process]) -> list[Process]:
        for process in processes:
            process.wait_status = 9
        return processes

    monkeypatch.setattr(survivors, "reap", dies)
    waiting_processes = Survivors()
    process = waiting(0, log)
    waiting_processes.add(process, launch(0))
    assert waiting_processes.hand_over([launch(0, MUSTER_ATTEMPT="4")]) == {}
    assert process.closed == {process.stdout, process.stderr, process.events, process.orders}


def test_the_end_of_a_process_closes_each_descriptor_once(log: list[str]) -> None:
    waiting_processes, process = Survivors(), waiting(0, log)
    process.close(process.stdout)
    waiting_processes.add(process, launch(0))
    waiting_processes.end()
    waiting_processes.end()
    assert process.closed == {process.stdout, process.stderr, process.events, process.orders}


def test_one_that_waits_ends_with_its_siblings_if_nothing_follows_or_after_a_hang() -> None:
    processes = [Process(0, 1, 0, 0, 0, waiting=True), Process(1, 2, 0, 0, 0)]

    def ranks(reply: Reply | None, *, stopped: bool = False) -> list[int]:
        return [process.rank for process in survivors.to_end(processes, reply, stopped=stopped)]

    assert ranks(None) == ranks(Reply(attempt=1)) == [1]
    assert ranks(None, stopped=True) == [0, 1]
    assert ranks(Reply(attempt=1, end=True)) == [0, 1]
    assert ranks(Reply(attempt=1, dump=True)) == [0, 1]


def test_one_that_waits_counts_as_one_that_has_lost_its_peers() -> None:
    waits, dead = Process(0, 1, 0, 0, 0, waiting=True), Process(1, 2, 0, 0, 0, waiting=True, wait_status=9)
    ends = survivors.ends_of_survivors([waits, dead, Process(2, 3, 0, 0, 0)], {}, NEVER)
    assert [(end.rank, end.exit_code, end.signal) for end in ends] == [(0, ExitCode.PEER_LOST, None)]
