"""The library in one process: outside Muster, in Muster, and its reports."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import muster_training as muster
from muster_contract.checkpoint_layout import parse_checkpoint_name
from muster_contract.environment import PREFIX
from muster_contract.events import Event, encode_event
from muster_contract.reports import NodeNotice
from muster_trainer.host import node_notice
from muster_training import session
from muster_training.place import LAUNCHERS, environment_of
from tests.support.own_loops import own_environment, own_replica

Enter = Callable[..., list[dict[str, Any]]]


def leave_muster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX) or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, outside Muster."""
    leave_muster(monkeypatch)
    session.current.cache_clear()
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    session.current.cache_clear()


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Enters a new attempt, and returns the list of the events that it sends."""

    def entered(folder: Path | None = None, **changed: Any) -> list[dict[str, Any]]:
        leave_muster(monkeypatch)
        for name, value in own_environment(folder, **changed).items():
            monkeypatch.setenv(name, value)
        session.current.cache_clear()
        gc.collect()  # what earlier tests have left would count as not registered
        sent: list[dict[str, Any]] = []
        sender = session.current().sender
        monkeypatch.setattr(sender, "send_document", lambda document: sent.append(dict(document)))
        monkeypatch.setattr(sender, "send", lambda event: sent.append(_document(event)))
        return sent

    return entered


def _document(event: Event) -> dict[str, Any]:
    return {name: value for name, value in encode_event(event).items() if name not in ("time", "rank")}


def of(sent: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in sent if event["event"] == kind]


def save(step: int, text: str = "state") -> None:
    with muster.checkpoint(step) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "state.txt").write_text(text)


def test_the_library_does_nothing_outside_muster(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    assert muster.environment() == muster.Environment(rank=0, world=1, attempt=0, inside=False)
    assert muster.latest() is None
    muster.report(step=1, total=2, loss=0.5, accuracy=0.1)
    assert muster.should_stop() is False
    with muster.checkpoint(1) as folder:
        (folder / "state").write_text("x")
    assert not folder.exists()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_the_rank_of_torchrun_is_used_if_there_is_one() -> None:
    assert environment_of({"RANK": "3", "WORLD_SIZE": "4"}, None) == muster.Environment(3, 4)
    assert environment_of({"RANK": "x"}, None) == muster.Environment()
    replica = own_replica(first_rank=2, world_size=4, attempt=7)
    assert environment_of({"RANK": "3", "WORLD_SIZE": "4"}, replica) == muster.Environment(3, 4, 7, inside=True)
    assert environment_of({"MUSTER_RANK": "2"}, replica) == muster.Environment(2, 4, 7, inside=True)
    assert environment_of({"RANK": "9", "WORLD_SIZE": "4"}, replica).rank == 2
    assert not environment_of({}, own_replica(rank=None)).in_world


@pytest.mark.parametrize("names", LAUNCHERS)
def test_the_rank_of_another_launcher_is_used_if_its_world_is_that_of_the_job(names: tuple[str, str]) -> None:
    variables = {names[0]: "3", names[1]: "4"}
    daemon = own_replica(first_rank=2, world_size=4, attempt=1)
    assert environment_of({**variables, "MUSTER_RANK": "2"}, daemon) == muster.Environment(3, 4, 1, inside=True)
    assert environment_of({**variables, "RANK": "1", "WORLD_SIZE": "4"}, daemon).rank == 1
    around_the_job = own_replica(first_rank=1, world_size=2)
    assert environment_of({names[0]: "0", names[1]: "1", "MUSTER_RANK": "1"}, around_the_job) == muster.Environment(1, 2, 0, inside=True)


def test_the_next_attempt_reads_the_commit_and_reports_its_resume(tmp_path: Path, enter: Enter) -> None:
    storage = tmp_path / "storage"
    sent = enter(storage)
    assert muster.latest() is None
    muster.report(step=1, total=4, loss=0.5)
    save(2)
    save(4, "end")
    assert [(event["step"], event["reason"]) for event in of(sent, "commit")] == [(2, "Periodic"), (4, "Final")]
    assert [event["step"] for event in of(sent, "resumed")] == [0]
    [folder] = storage.glob("step-00000004-*")
    assert sorted(path.name for path in folder.iterdir()) == ["COMMITTED", "manifest.json", "sub"]
    assert json.loads((folder / "manifest.json").read_text())["files"].keys() == {"sub/state.txt"}

    sent = enter(storage, attempt=1)
    resume = muster.latest()
    assert resume is not None
    assert (resume.step, (resume / "sub/state.txt").read_text()) == (4, "end")
    muster.report(step=5)
    [resumed] = of(sent, "resumed")
    assert (resumed["step"], resumed["committedStep"]) == (4, 4)


def test_a_damaged_commit_is_skipped_with_a_notice(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path)
    save(2)
    save(4)
    next(tmp_path.glob("step-00000004-*/sub/state.txt")).write_text("stath")
    sent = enter(tmp_path, attempt=1)
    resume = muster.latest()
    assert resume is not None
    assert resume.step == 2
    [notice] = of(sent, "notice")
    assert notice["reason"] == "CheckpointDamaged"


@pytest.mark.parametrize("reads_commit", [True, False])
def test_a_program_that_ignores_its_commits_is_reported_as_starting_over(tmp_path: Path, enter: Enter, reads_commit: bool) -> None:
    enter(tmp_path)
    save(4)
    sent = enter(tmp_path, attempt=1)
    if reads_commit:
        muster.latest()
    muster.report(step=1)
    muster.report(step=2)
    [resumed] = of(sent, "resumed")
    assert (resumed["step"], resumed["committedStep"]) == (0, 4)


def test_a_program_that_saves_the_resumed_step_has_not_started_over(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path)
    save(4)
    sent = enter(tmp_path, attempt=1)
    muster.latest()
    save(4)
    [resumed] = of(sent, "resumed")
    assert (resumed["step"], resumed["committedStep"]) == (4, 4)


def test_a_program_with_its_own_checkpoints_reports_no_resume(tmp_path: Path, enter: Enter) -> None:
    sent = enter(tmp_path)
    muster.report(step=100)
    assert of(sent, "resumed") == []


def test_an_older_attempt_may_not_save(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path, attempt=1)
    save(4)
    enter(tmp_path, attempt=0)
    with pytest.raises(muster.PeerLost, match="has taken over"):
        save(5)
    assert list(tmp_path.glob("step-00000005-*")) == []


@pytest.mark.parametrize("way", ["own folder", "shared folder", "copy"])
def test_an_attempt_that_becomes_older_while_it_saves_commits_nothing(tmp_path: Path, enter: Enter, way: str) -> None:
    """As a process does on a node that the operator has given up."""
    enter(tmp_path)
    save(4)
    registration = next(tmp_path.glob("attempts/*.json"))
    newer = registration.with_name(registration.name.replace("-0000", "-0001"))
    written = tmp_path.parent / "library"
    written.mkdir(exist_ok=True)
    (written / "state").write_text("x")

    def save_late() -> None:
        if way == "copy":
            newer.write_bytes(registration.read_bytes())
            session.checkpoint_copy(5, written, seconds=0.1)
            return
        with muster.checkpoint(5, shared=way == "shared folder") as folder:
            (folder / "state").write_text("x")
            newer.write_bytes(registration.read_bytes())

    with pytest.raises(muster.PeerLost, match="has taken over"):
        save_late()
    assert list(tmp_path.glob("step-00000005-*/COMMITTED")) == []


def test_commits_and_resumes_show_the_operator_that_they_are_fenced(tmp_path: Path, enter: Enter) -> None:
    """It replaces a program on a lost node at once only if it knows that."""
    sent = enter(tmp_path)
    save(4)
    [commit] = of(sent, "commit")
    sent = enter(tmp_path, attempt=1)
    muster.latest()
    muster.report(step=5)
    [resumed] = of(sent, "resumed")
    for path in (commit["path"], Path(resumed["path"]).name):
        assert parse_checkpoint_name(path) is not None, path


@pytest.mark.parametrize("name", ["link", "pipe", "bad\nname", "manifest.json", None])
def test_invalid_files_of_a_checkpoint_are_refused_and_removed(tmp_path: Path, enter: Enter, name: str | None) -> None:
    enter(tmp_path)
    with pytest.raises(muster.UserError, match=r"checkpoint"), muster.checkpoint(3) as folder:  # noqa: PT012
        if name == "link":
            (folder / name).symlink_to("/etc/passwd")
        elif name == "pipe":
            os.mkfifo(folder / name)
        elif name:
            (folder / name).touch()
    assert list(tmp_path.glob("step-*")) == []


def test_an_exception_in_the_block_saves_nothing(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path)
    with pytest.raises(ZeroDivisionError), muster.checkpoint(3) as folder:  # noqa: PT012
        (folder / "state").touch()
        1 / 0  # noqa: B018
    assert list(tmp_path.glob("step-*")) == []


def test_a_save_without_storage_sends_one_notice(enter: Enter, capsys: pytest.CaptureFixture[str]) -> None:
    sent = enter()
    save(1)
    save(2)
    assert len(of(sent, "notice")) == 1
    assert capsys.readouterr().err.count("no checkpoint storage") == 1
    assert muster.latest() is None


def test_an_evaluator_reads_and_does_not_write(tmp_path: Path, enter: Enter) -> None:
    enter(tmp_path)
    save(4)
    before = sorted(tmp_path.rglob("*"))
    enter(tmp_path, rank=None, role="evaluator", attempt=1)
    resume = muster.latest()
    assert resume is not None
    assert resume.step == 4
    with pytest.raises(muster.UserError, match="evaluator"):
        save(5)
    assert sorted(tmp_path.rglob("*")) == before


def test_sigterm_stops_at_the_next_step_and_the_save_has_its_reason(tmp_path: Path, enter: Enter) -> None:
    called = []
    signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    sent = enter(tmp_path)
    assert not muster.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert muster.should_stop()
    assert muster.should_stop()
    save(7)
    assert called == [1]
    assert [event["reason"] for event in of(sent, "commit")] == ["Stop"]
    assert [event["phase"] for event in of(sent, "phase")] == ["Stopping"]


@pytest.mark.parametrize("step", [1.5, "1", None, -1, 10**20])
def test_an_invalid_step_is_refused(step: Any) -> None:
    with pytest.raises(muster.UserError, match="step"):
        muster.report(step=step)


def test_figures_that_are_not_numbers_are_left_out(enter: Enter) -> None:
    sent = enter()
    muster.report(step=1, loss="high", accuracy=float("nan"), recall=0.5, note=object())  # type: ignore[arg-type]
    muster.report(step=2, loss=float("nan"))
    first, second = of(sent, "step")
    assert ("loss" in first, second["loss"]) == (False, "nan")
    assert [event["metrics"] for event in of(sent, "evaluation")] == [{"recall": 0.5}]


def test_a_notice_is_a_wish_to_save_once_at_the_next_step(tmp_path: Path, enter: Enter) -> None:
    notice = NodeNotice(node="spot-1", signal="cordon", since=1.0, goes=True)
    enter(tmp_path / "storage", state_dir=tmp_path)
    assert [muster.should_save(), muster.should_stop(), muster.should_save()] == [False] * 3
    node_notice.write(tmp_path, notice)
    assert [(muster.should_stop(), muster.should_save()) for _ in range(3)] == [(False, True), (False, False), (False, False)]
    node_notice.write(tmp_path, None)
    assert (muster.should_stop(), muster.should_save()) == (False, False)
    node_notice.write(tmp_path, replace(notice, node="spot-2"))
    assert (muster.should_stop(), muster.should_save()) == (False, True)


FORKS = """
import os, signal, sys
import muster_training as muster
assert not muster.should_stop()
helper = os.fork()
if not helper:
    signal.raise_signal(signal.SIGTERM)
    os._exit(0)
_, status = os.waitpid(helper, 0)
print(os.waitstatus_to_exitcode(status), muster.should_stop())
"""


def test_a_forked_helper_ends_at_sigterm() -> None:
    """In a process of its own: JAX in the process of the tests does not outlive a fork."""
    outcome = subprocess.run(
        [sys.executable, "-c", FORKS], env={**os.environ, **own_environment()}, capture_output=True, text=True, timeout=120
    )
    assert outcome.stdout.split() == [str(-signal.SIGTERM), "False"], outcome.stderr
