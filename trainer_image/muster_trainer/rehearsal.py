"""The bundled task `rehearsal`: what `muster plan` runs to learn what a step costs.

Each process trains by itself, without the others, and yet at the same time: so a step costs what it would in a world of so many
processes that never spoke to each other. What they say to each other is the matter of the task `collectives`.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from muster_trainer.collectives import tell
from muster_trainer.contract import DEFAULT_GLOBAL_SIZE, BatchSpec, ExitCode, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.engine import Engine
from muster_trainer.events import Events
from muster_trainer.measuring import Timing, durations
from muster_trainer.meeting import Meeting
from muster_trainer.memory import peak_bytes, spare_bytes
from muster_trainer.tasks.config import Key, number, read_config
from muster_trainer.tasks.module import Task

MOST_STEPS = 60
WARM_UP = 3
LONGEST_STEP = 15.0  # seconds


def _samples(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 16 and all(type(one) is int and one >= 1 for one in value)


def _name(value: Any) -> bool:
    return value is None or isinstance(value, str)


KEYS = (
    Key("task", None, "the name of a bundled task", _name),
    Key("module", None, "the name of a module", _name),
    Key("config", {}, "the config of the task or module", lambda value: isinstance(value, dict)),
    Key("samples", [DEFAULT_GLOBAL_SIZE], "a list of 1 to 16 numbers of samples in a step of a process", _samples),
    number("seconds", 1.0, positive=True),  # about how long each figure is measured
)


@dataclass(frozen=True)
class Rehearsal:
    """What is rehearsed, and for how many `samples` in a step of each process; about `seconds` for each number of them."""

    spec: TrainerSpec
    samples: list[int]
    seconds: float

    @classmethod
    def of(cls, spec: TrainerSpec) -> Rehearsal:
        """From the spec of a job that runs the task `rehearsal`. Raises BadConfiguration."""
        config = read_config(spec.config, KEYS, others_allowed=False)
        batch = BatchSpec(max(config.samples), spec.batch.accumulation_steps)
        inner = replace(spec, task=config.task, module=config.module, config=config.config, batch=batch, checkpoint=None)
        return cls(inner, sorted(config.samples), config.seconds)

    def measure(self, task: Task, engine: Engine, events: Events, meeting: Meeting) -> ExitCode:
        """A step with each number of samples, least first: the peak of memory never falls. Ends before one that would take too long, or
        more memory than there is, by what those before it took."""
        events.emit("phase", phase="Training")
        before, peak, seconds, done = peak_bytes(), 0, 0.0, 0
        for samples in self.samples:
            more = samples / max(done, 1)
            heavy = done and (more * seconds > LONGEST_STEP or (more - 1) * (peak - before) > spare_bytes())
            if any(meeting.share(heavy)):
                break
            timing = self._steps(samples, task, engine, meeting)
            peak, seconds, done = max(meeting.share(peak_bytes())), timing.median, samples
            if meeting.rank == 0:
                gradients, state = engine.weigh()
                tell(
                    events,
                    what="step",
                    samples=min(samples, len(task.train)),
                    processes=meeting.world,
                    threads=engine.fingerprint()["threads"],
                    gradientBytes=gradients,
                    stateBytes=state,
                    peakBytes=peak,
                    **timing.fields(),
                )
        return ExitCode.COMPLETED

    def _steps(self, samples: int, task: Task, engine: Engine, meeting: Meeting) -> Timing:
        """Of steps that all processes begin together; each counts until the last is through."""
        whole = min(samples, len(task.train))
        order = Order(task.config.seed, len(task.train) // whole * whole, whole)  # no step is shorter than the others
        coming = range(MOST_STEPS + WARM_UP)
        engine.expect(order, coming)
        steps = iter(coming)

        def step() -> None:
            number = next(steps)
            engine.step(order.batch_indices(number), step=number, stop=False, save=False, busy=False)

        own = durations(
            step, prepare=lambda: meeting.share(None), agree=meeting.first, warm_up=WARM_UP, most=MOST_STEPS, seconds=self.seconds
        )
        return Timing.of([max(of_all) for of_all in zip(*meeting.share(own), strict=True)])


def part_from_the_world(environment: MutableMapping[str, str] = os.environ) -> None:
    """Lets the framework of this process find nobody to join."""
    environment.pop("TF_CONFIG", None)
    environment.pop("MASTER_PORT", None)
    environment.update(RANK="0", WORLD_SIZE="1")
