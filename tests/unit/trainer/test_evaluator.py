"""The commits that the evaluator measures, and its end. The engine is a fake."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_contract.codes import ExitCode
from muster_contract.events import CommitReason, encode_event
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, select
from muster_trainer.training import evaluator

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)
PERIODIC = Manifest(0, 0, 0, 0, 1, "ParameterServer", 0, {}, {}, CommitReason.PERIODIC, "2026-11-21T11:16:14+00:00")


class Stage:
    """A checkpoint directory, and an evaluator that follows it. `on_load` is called with each commit that is read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.stop = SimpleNamespace(requested=False, training=False)
        self.on_load = lambda path: None
        self.checkpoint: CheckpointSpec | None = CheckpointSpec(str(directory))
        self.test: Any = [0, 1, 2]

    def commit(self, step: int, reason: CommitReason = CommitReason.PERIODIC, *, earlier: int = 0) -> Path:
        store = Store(self.directory, Fence(CREATED - timedelta(seconds=earlier), 0), keep=9)
        if not list(self.directory.glob(f"attempts/{store.fence}.json")):
            store.register(select(CheckpointSpec(str(self.directory)), store.fence))
        path = store.begin(step)
        (path / "weights").write_text(str(step))
        store.commit(path, replace(PERIODIC, step=step, reason=reason, files=store.flush(path, ["weights"], path)))
        return path

    def record(self, event: str, **fields: Any) -> None:
        self.sent.append((event, fields))

    def run(self) -> ExitCode:
        events = SimpleNamespace(
            emit=lambda event: self.sent.append((event.event, encode_event(event))),
            phase=lambda phase: self.record("phase", phase=phase),
            notice=lambda reason, message: self.record("notice", reason=reason, message=message),
            say=lambda text: None,
        )
        engine = SimpleNamespace(load=lambda path: self.on_load(path), evaluate=lambda batches: {"samples": sum(map(len, batches))})
        return evaluator.Evaluator(
            spec=SimpleNamespace(checkpoint=self.checkpoint, batch=SimpleNamespace(global_size=2)),  # type: ignore[arg-type]
            env=SimpleNamespace(job_created=CREATED, tensorboard_dir=None, attempt=0),  # type: ignore[arg-type]
            task=SimpleNamespace(title="task", test=self.test),  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            events=events,  # type: ignore[arg-type]
            stop=self.stop,  # type: ignore[arg-type]
        ).run()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.sent if event == kind]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(evaluator, "LOOK_SECONDS", 0.0)
    return Stage(tmp_path)


def test_commits_are_measured_in_their_order_until_the_final_one(stage: Stage) -> None:
    stage.commit(10)
    following = {10: (20, "Periodic"), 20: (30, "Final")}

    def commit_next(path: Path) -> None:
        step = int((path / "weights").read_text())
        if step in following:
            stage.commit(*following[step])

    stage.on_load = commit_next
    assert stage.run() is ExitCode.COMPLETED
    assert [(event["step"], event["metrics"]) for event in stage.of("evaluation")] == [(step, {"samples": 3}) for step in (10, 20, 30)]


def test_commits_of_an_earlier_job_are_ignored(stage: Stage) -> None:
    stage.commit(10, CommitReason.FINAL, earlier=100)
    stage.commit(20, CommitReason.FINAL)
    assert stage.run() is ExitCode.COMPLETED
    assert [event["step"] for event in stage.of("evaluation")] == [20]


def test_only_a_damaged_commit_is_skipped_with_a_notice(stage: Stage) -> None:
    (stage.commit(10) / "weights").write_text("else")
    removed = stage.commit(20)
    stage.commit(30, CommitReason.FINAL)

    def remove(path: Path) -> None:
        if path == removed:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
            raise OSError("gone")

    stage.on_load = remove
    assert stage.run() is ExitCode.COMPLETED
    assert [event["step"] for event in stage.of("evaluation")] == [30]
    (notice,) = stage.of("notice")
    assert notice["reason"] == "EvaluationSkipped"


def test_the_evaluator_measures_the_newest_commit_after_a_stop_request(stage: Stage) -> None:
    for step in (10, 20, 30):
        stage.commit(step)
    stage.stop.requested = True
    assert stage.run() is ExitCode.PREEMPTED
    assert [event["step"] for event in stage.of("evaluation")] == [30]


@pytest.mark.parametrize(("lacking", "message"), [("test", "no test set"), ("checkpoint", "no checkpoint storage")])
def test_an_evaluator_with_nothing_to_measure_sends_a_notice_and_succeeds(stage: Stage, lacking: str, message: str) -> None:
    setattr(stage, lacking, None)
    assert stage.run() is ExitCode.COMPLETED
    (notice,) = stage.of("notice")
    assert notice["reason"] == "NothingToEvaluate"
    assert message in notice["message"]
