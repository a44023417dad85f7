"""Training that a test has started somewhere: how to wait for it, what it did, and how it must have ended.

`BareWorld` starts training processes without a supervisor, `LocalJob` starts `muster run`, and `ClusterJob` runs in Kubernetes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from muster.api.spec import TrainingJobSpec
from muster.strategies.registry import STRATEGIES
from tests.support.waiting import DEADLINE, Result, wait_until

Document = dict[str, Any]
RANKED = ("chief", "worker", "ps")
COUNTERS = ("preemption", "infrastructure", "application")


class TrainingRun(ABC):
    """Training processes that run or have run, and the events that they sent."""

    deadline = DEADLINE
    """Seconds for which it is waited where the test names none."""

    @abstractmethod
    def events(self, kind: str) -> list[Document]:
        """The events of this kind, attempt by attempt."""

    @abstractmethod
    def story(self) -> str:
        """What helps to see why something did not happen."""

    def has_ended(self) -> bool:
        """Whether no more events can come."""
        return False

    def wait_for(self, condition: Callable[[], Result | None], what: str, timeout: float | None = None) -> Result:
        """Returns the first true result. Fails with the story of this run after `timeout` seconds, or when the run has ended."""

        def look() -> Result | None:
            has_ended = self.has_ended()  # before the look, which then sees all events
            result = condition()
            assert result or not has_ended, f"the run has ended, and still not: {what}"
            return result

        try:
            return self._poll(look, what, timeout or self.deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def _poll(self, condition: Callable[[], Result | None], what: str, seconds: float) -> Result:
        return wait_until(condition, what, seconds)

    def wait_for_event(self, kind: str, matches: Callable[[Document], object] = bool) -> Document:
        """The first event of this kind that matches."""
        return self.wait_for(lambda: next(filter(matches, self.events(kind)), {}), f"an event: {kind}")

    def wait_for_step(self, step: int, *, attempt: int = 0, timeout: float | None = None) -> None:
        """Waits until this step is done in this attempt or in a later one."""

        def is_done() -> bool:
            return any(event["step"] >= step for event in self.events("step") if event.get("attempt", 0) >= attempt)

        self.wait_for(is_done, f"step {step} of attempt {attempt}", timeout)

    def losses(self) -> dict[int, str]:
        """The loss of each step, to the bit, in the attempt that did it last."""
        return {event["step"]: event["lossHex"] for event in self.events("step")}

    def newest_commit(self, attempt: int) -> int:
        """The step of the newest commit up to the end of an attempt; 0 if there is none."""
        return max((event["step"] for event in self.events("commit") if event["attempt"] <= attempt and "step" in event), default=0)

    def resumed_step(self, attempt: int) -> int:
        """The step from which an attempt resumed."""
        [step] = {event["step"] for event in self.events("resumed") if event["attempt"] == attempt}
        return int(step)


class RunningJob(TrainingRun):
    """A TrainingJob, with its spec and status."""

    accuracy = 0.9
    """What an asynchronous job must reach, because its losses depend on the order of its workers."""

    @property
    @abstractmethod
    def spec(self) -> Document: ...

    @property
    @abstractmethod
    def status(self) -> Document:
        """The status; empty as long as there is none."""

    @abstractmethod
    def wait_for_end(self, timeout: float | None = None) -> str:
        """The final phase."""

    @property
    def attempts(self) -> list[Document]:
        """The records of the attempts."""
        attempts: list[Document] = self.status.get("attempts", [])
        return attempts

    @property
    def step(self) -> int:
        """The last step that the status shows."""
        return int((self.status.get("progress") or {}).get("step", 0))

    @property
    def committed(self) -> int:
        """The step of the newest commit that the status shows."""
        return int((self.status.get("checkpoint") or {}).get("step", 0))

    @property
    def replicas(self) -> list[str]:
        """The names of the replicas of the world, in the order of their ranks."""
        roles = self.spec["roles"]
        return [f"{role}-{index}" for role in RANKED if role in roles for index in range(roles[role].get("replicas", 1))]

    @property
    def is_synchronous(self) -> bool:
        """Whether workers wait for one another, so that the losses equal those of an undisturbed run."""
        spec = TrainingJobSpec.model_validate(self.spec)
        return STRATEGIES[spec.strategy].is_synchronous(spec) or bool(self.spec.get("options", {}).get("synchronous"))

    def condition(self, kind: str) -> Document:
        """The condition of this type; empty if there is none."""
        return next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})

    def wait_until(self, what: str, condition: Callable[[Document], object], *, timeout: float | None = None) -> None:
        """Waits for a condition of the status."""
        self.wait_for(lambda: condition(self.status), what, timeout)

    def wait_for_phase(self, *phases: str, timeout: float | None = None) -> None:
        self.wait_until(" or ".join(phases), lambda status: status.get("phase") in phases, timeout=timeout)

    def wait_for_commit(self, step: int = 5) -> None:
        """Waits until the status shows a commit of this step or a later one."""
        self.wait_for(lambda: self.committed >= step, f"a commit at step {step}")

    def losses(self) -> dict[int, str]:
        """The loss of each step, to the bit. A synchronous job that did a step twice must have had the same loss again."""
        steps = self.events("step")
        losses = {event["step"]: event["lossHex"] for event in steps}
        if self.is_synchronous and "elastic" not in self.spec:
            assert [event for event in steps if event["lossHex"] != losses[event["step"]]] == []
        return losses

    def check_succeeded(self, like: Mapping[int, str], *, timeout: float | None = None) -> None:
        """Every step is done, and a synchronous job has the losses of the undisturbed run, `like`."""
        assert self.wait_for_end(timeout) == "Succeeded", self.story()
        losses, progress = self.losses(), self.status["progress"]
        assert sorted(losses) == list(range(1, len(losses) + 1))
        assert progress["step"] == progress["totalSteps"] == len(losses)
        if self.is_synchronous:
            assert losses == like
        else:
            assert progress["metrics"]["accuracy"] > self.accuracy
        assert self.condition("Complete")["status"] == "True"

    def check_restarts(self, **counts: int) -> None:
        """The restarts are counted by class, and there were no others."""
        restarts = self.status["restarts"]
        counted = {name: restarts[f"{name}Count"] for name in COUNTERS}
        assert counted == dict.fromkeys(COUNTERS, 0) | counts, self.attempts
        assert restarts["total"] == sum(counts.values())


def read_events(files: Iterable[Path], kind: str) -> list[Document]:
    """The events of this kind in these files, by attempt and time. A line that is still being written is left out."""
    lines = (line for file in files for line in file.read_text().splitlines() if line.endswith("}"))
    events = [event for event in map(json.loads, lines) if event["event"] == kind]
    return sorted(events, key=lambda event: (int(event["attempt"]), float(event["time"])))
