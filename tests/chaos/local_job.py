"""The jobs of the matrix under `muster run`: how they are started, what they have told, and what must hold when they have ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from tests.chaos.matrix import jobs
from tests.local.runs import Place, finish, job, wait_until

from muster.strategies.registry import STRATEGIES
from muster_trainer.checkpoint.manifest import is_committed, verifies
from muster_trainer.checkpoint.selection import checkpoints

EPOCHS, STEPS_OF_EPOCH, EVERY = 4, 23, 10
SECONDS = 300.0
CLOCK = Path(__file__).with_name("clock")
Curve = dict[int, str]


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
class LocalJob:
    """A job of the matrix that runs; `process` is its `muster run`, another one after `resume`."""

    place: Place
    document: Mapping[str, Any]
    process: subprocess.Popen[str] = field(init=False)

    @property
    def replicas(self) -> list[str]:
        """Their names, in the order of their ranks."""
        roles: Mapping[str, Mapping[str, Any]] = self.document["spec"]["roles"]
        return [f"{role}-{index}" for role, given in roles.items() for index in range(given.get("replicas", 1))]

    @property
    def first(self) -> str:
        return self.replicas[0]

    @property
    def other(self) -> str:
        """A replica that is not rank 0's, where there is one: a worker, if it may be."""
        others = [name for name in self.replicas[1:] if name.startswith("worker")]
        return others[-1] if others else self.first

    @property
    def synchronous(self) -> bool:
        """Whether workers wait for one another, so that the losses are those of an undisturbed run."""
        spec = self.document["spec"]
        return STRATEGIES[spec["strategy"]].synchronous or spec.get("options", {}).get("synchronous", False)

    @property
    def checkpoints(self) -> Path:
        return self.place.run / "checkpoints" / "default" / "tiny"

    @property
    def clock(self) -> Path:
        return self.place.folder / "clock"

    def start(self, *options: str) -> None:
        self.process = self.place.start("job.yaml", *options, env={"PYTHONPATH": str(CLOCK), "CHAOS_CLOCK": str(self.clock)})

    def move_clock(self, seconds: float) -> None:
        """Sets the clock of all processes of the job ahead of this machine's, or back."""
        new = self.clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.clock)

    def wait_for_step(self, step: int, *, attempt: int = 0) -> None:
        """Until that step is done in that attempt, or a later one."""

        def done() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            return any(event["step"] >= step for event in self.events("step") if event["attempt"] >= attempt)

        wait_until(done, f"step {step} of attempt {attempt}", SECONDS)

    def pid_of(self, *replicas: str, attempt: int = 0) -> int:
        """The training process of the first of the replicas that has one of at least that attempt, once there is one."""
        found: list[int] = []

        def known() -> bool:
            entries = [entry for entry in self.place.processes() if entry["replica"] in replicas and entry["attempt"] >= attempt]
            found[:] = [process["pid"] for entry in entries for process in entry["processes"]]
            return bool(found)

        wait_until(known, f"a process of {replicas} in attempt {attempt}", SECONDS)
        return found[0]

    def kill(self, replica: str, number: signal.Signals = signal.SIGKILL, *, attempt: int = 0) -> None:
        """Sends the signal to the training process of a replica."""
        os.kill(self.pid_of(replica, attempt=attempt), number)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Those that replicas of the world have told, attempt by attempt."""
        found: list[dict[str, Any]] = []
        for path in self.place.run.glob("attempts/*/*/events.jsonl"):
            lines = path.read_text().splitlines()
            found += [event for event in map(json.loads, (line for line in lines if line.endswith("}"))) if event["event"] == kind]
        return sorted(found, key=lambda event: int(event["attempt"]))

    def curve(self) -> Curve:
        """Loss by step, to the bit, in the attempt that did it last."""
        return {event["step"]: event["lossHex"] for event in self.events("step")}

    def finish(self, seconds: float = SECONDS) -> None:
        code, output = finish(self.process, seconds)
        assert code == 0, output
        assert self.place.status()["phase"] == "Succeeded"


@contextmanager
def running(folder: Path, document: Mapping[str, Any]) -> Iterator[LocalJob]:
    """The job, started in a folder of its own. No process of it is left."""
    folder.mkdir(exist_ok=True)
    place = Place(folder)
    place.write(document)
    started = LocalJob(place, document)
    started.move_clock(0)
    started.start()
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.communicate()
        place.assert_nothing_left()


def check_ends(job: LocalJob, *, times: int, failure_class: str | None, reasons: frozenset[str]) -> None:
    """So many attempts have ended, all for that reason, and are counted so; without a class they cost nothing."""
    status = job.place.status()
    *ended, _ = records = status["attempts"]
    assert len(ended) == times or (0 < len(ended) < times and not job.synchronous), records
    times = len(ended)
    assert [(record.get("class"), record["reason"] in reasons) for record in ended] == [(failure_class, True)] * times, records
    restarts = status["restarts"]
    counted = {name: restarts[f"{name.lower()}Count"] for name in ("Preemption", "Infrastructure", "Application")}
    assert {name: count for name, count in counted.items() if count} == ({failure_class: times} if failure_class and times else {})
    assert restarts["total"] == sum(counted.values())


def check_resumed(job: LocalJob, *, most: int) -> None:
    """Each attempt went on from a commit, none of those told is forgotten but a damaged one, and at most `most` steps were redone."""
    commits = {event["step"] for event in job.events("commit")} | {0}
    done: dict[int, int] = {}
    for event in job.events("step"):
        done[event["attempt"]] = max(event["step"], done.get(event["attempt"], 0))
    for event in job.events("resumed"):
        before = [last for attempt, last in done.items() if attempt < event["attempt"]]
        if before and event["step"] not in commits:  # it was made, and whoever made it died before it could say so
            assert event["step"] % EVERY == 0 or event["step"] == before[-1], event
        if before:
            assert before[-1] - event["step"] <= most, (event, done)


def check_curve(job: LocalJob, like: Curve) -> None:
    """Every step was done; a synchronous strategy's losses are those of the undisturbed run to the bit, whenever it did them."""
    curve = job.curve()
    assert sorted(curve) == list(range(1, len(curve) + 1))
    status = job.place.status()
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == len(curve)
    if job.synchronous:
        assert {event["step"] for event in job.events("step") if event["lossHex"] != like[event["step"]]} == set()
    else:
        assert status["progress"]["metrics"]["accuracy"] > 0.85


def check_nothing_left(job: LocalJob) -> None:
    """No process, and no checkpoint that is not whole."""
    assert job.place.processes() == []
    left = checkpoints(job.checkpoints)
    assert all(is_committed(one.path) and verifies(one) for one in left), left
    found = {path.name for path in job.checkpoints.iterdir() if not path.name.startswith("pipeline-")}  # a cut, which is kept
    assert found == {"attempts", *(one.path.name for one in left)}


def check_books(job: LocalJob) -> None:
    """Goodput accounts for every second of the job's life."""
    status = job.place.status()
    began = yaml.safe_load((job.place.run / "job.yaml").read_text())["metadata"]["creationTimestamp"]
    lived = (datetime.fromisoformat(status["completionTime"]) - datetime.fromisoformat(str(began))).total_seconds()
    booked = sum(seconds for part, seconds in status["goodput"].items() if part.endswith("Seconds"))
    assert abs(booked - lived) < 0.005, status["goodput"]
