"""The jobs of the matrix under `muster run`, and what must hold when they have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_trainer.checkpoint.manifest import is_committed, verifies
from muster_trainer.checkpoint.selection import checkpoints
from tests.chaos.matrix import jobs
from tests.support.local_jobs import LocalJob, job

EPOCHS, STEPS_OF_EPOCH, EVERY = 4, 23, 10
CLOCK = Path(__file__).with_name("clock")


def digits(name: str, *, epochs: int = EPOCHS, delay: float = 0.05, **spec: Any) -> dict[str, Any]:
    """Digits by the strategy of that job of the matrix, a commit every 10 steps; `delay` gives the faults time."""
    config = {"epochs": epochs, "seed": 3, "deterministic": True, "hidden": [256, 256], "stepDelaySeconds": delay}
    common = {
        "trainer": {"task": "digits", "config": config},
        "batch": {"globalSize": 64},
        "checkpoint": {"everySteps": EVERY, "gracePeriodSeconds": 30},
        "roles": {"worker": {}},
    }
    return job(**{**common, **jobs()[name], **spec})


@dataclass
class ChaosJob(LocalJob):
    """A job of the matrix under `muster run`, whose processes share a clock that a test can move."""

    accuracy = 0.85

    @property
    def first(self) -> str:
        return self.replicas[0]

    @property
    def other(self) -> str:
        """A replica that is not rank 0's, where there is one: a worker, if it may be."""
        others = [name for name in self.replicas[1:] if name.startswith("worker")]
        return others[-1] if others else self.first

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints" / "default" / "tiny"

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(CLOCK), "CHAOS_CLOCK": str(self.folder / "clock")}

    def resume(self) -> None:
        self.start("job.yaml", "--resume", env=self.environment)

    def move_clock(self, seconds: float) -> None:
        """Sets the clock of all processes of the job ahead of this machine's, or back."""
        new = self.folder / "clock.new"
        new.write_text(str(seconds))
        new.replace(self.folder / "clock")


@contextmanager
def running(folder: Path, document: Mapping[str, Any]) -> Iterator[ChaosJob]:
    """The job, started in a folder of its own. No process of it is left."""
    folder.mkdir(exist_ok=True)
    job = ChaosJob(folder)
    job.move_clock(0)
    with job.running(job.write(document), env=job.environment):
        yield job


def check_ends(job: ChaosJob, *, times: int, failure_class: str | None, reasons: frozenset[str]) -> None:
    """So many attempts have ended, all for that reason, and are counted so; without a class they cost nothing."""
    *ended, _ = records = job.attempts
    assert len(ended) == times or (0 < len(ended) < times and not job.is_synchronous), records
    times = len(ended)
    assert [(record.get("class"), record["reason"] in reasons) for record in ended] == [(failure_class, True)] * times, records
    job.check_restarts(**({failure_class.lower(): times} if failure_class else {}))


def check_resumed(job: ChaosJob, *, most: int) -> None:
    """Each attempt resumed from a commit, or from memory. Only damaged commits were skipped. At most `most` steps were redone."""
    commits = {event["step"] for event in job.events("commit")} | {0}
    done: dict[int, int] = {}
    for event in job.events("step"):
        done[event["attempt"]] = max(event["step"], done.get(event["attempt"], 0))
    for event in job.events("resumed"):
        before = [last for attempt, last in done.items() if attempt < event["attempt"]]
        if event.get("source") != "Memory" and before and event["step"] not in commits:
            # the process that committed it ended before it could report it
            assert event["step"] % EVERY == 0 or event["step"] == before[-1], event
        if before:
            assert before[-1] - event["step"] <= most, (event, done)


def check_source(job: ChaosJob, source: str | None, notices: Collection[str]) -> None:
    """An attempt resumed from there, and the job gave notice for these reasons."""
    if source is not None:
        assert source in {record.get("resumedFrom") for record in job.attempts[1:]}, job.attempts
    assert set(notices) <= {event["reason"] for event in job.events("notice")}, job.story()


def check_nothing_left(job: ChaosJob) -> None:
    """No process, and no checkpoint that is not whole."""
    assert job.processes() == []
    left = checkpoints(job.checkpoints)
    assert all(is_committed(one.path) and verifies(one) for one in left), left
    names = {path.name for path in job.checkpoints.iterdir() if not path.name.startswith("pipeline-")}  # a cut, which is kept
    assert names - {"history"} == {"attempts", *(one.path.name for one in left)}
