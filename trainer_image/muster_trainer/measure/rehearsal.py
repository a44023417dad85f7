"""The bundled task `rehearsal`. `muster plan` runs it to measure the cost of a step.

All processes train at the same time, but without each other, so that the cost does not include communication. The task `collectives`
measures communication.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from muster_contract.codes import ExitCode
from muster_contract.config import Key, number
from muster_contract.events import Activity, StepMeasurement
from muster_contract.strategy import Framework
from muster_contract.trainer_spec import DEFAULT_GLOBAL_SIZE, BatchSpec, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.host.events import Events
from muster_trainer.host.memory import peak_bytes, spare_bytes
from muster_trainer.measure.collectives import send
from muster_trainer.measure.measuring import Timing, durations
from muster_trainer.measure.meeting import Meeting
from muster_trainer.tasks.config import read_config
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import Engine

MOST_STEPS = 60
WARM_UP = 3
LONGEST_STEP = 15.0  # seconds


def _samples(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 16 and all(type(one) is int and one >= 1 for one in value)


def _name(value: object) -> bool:
    return value is None or isinstance(value, str)


KEYS = (
    Key("task", None, "the name of a bundled task", _name),
    Key("module", None, "the name of a module", _name),
    Key("config", {}, "the config of the task or module", lambda value: isinstance(value, dict)),
    Key("samples", [DEFAULT_GLOBAL_SIZE], "a list of 1 to 16 numbers of samples in a step of a process", _samples),
    number("seconds", 1.0, positive=True),  # the approximate time for each figure
)


@dataclass(frozen=True)
class Rehearsal:
    """A measurement of the steps of a job. `samples` are the numbers of samples in a step of a process. Each takes about `seconds`."""

    spec: TrainerSpec
    samples: list[int]
    seconds: float

    @classmethod
    def of(cls, spec: TrainerSpec) -> Rehearsal:
        """Parses the spec of a job with the task `rehearsal`. Raises BadConfiguration."""
        config = read_config(spec.config, KEYS, others_allowed=False)
        batch = BatchSpec(max(config.samples), spec.batch.accumulation_steps)
        inner = replace(spec, task=config.task, module=config.module, config=config.config, batch=batch, checkpoint=None, memory=None)
        return cls(inner, sorted(config.samples), config.seconds)

    def measure(self, task: Task, engine: Engine, events: Events, meeting: Meeting) -> ExitCode:
        """Measures a step with each number of samples. Begins with the smallest, because the peak of the memory never falls. Stops before
        a number that would take too much time or memory, by an estimate from the previous numbers."""
        events.phase(Activity.TRAINING)
        framework = self.spec.strategy.framework
        before, peak, seconds, done = peak_bytes(framework), 0, 0.0, 0
        for samples in self.samples:
            more = samples / max(done, 1)
            heavy = done and (more * seconds > LONGEST_STEP or (more - 1) * (peak - before) > spare_bytes())
            if any(meeting.share(heavy)):
                break
            timing = self._steps(samples, task, engine, meeting)
            peak, seconds, done = max(meeting.share(peak_bytes(framework))), timing.median, samples
            if meeting.rank == 0:
                gradients, state = engine.weigh()
                measured = StepMeasurement(
                    samples=min(samples, len(task.train)),
                    processes=meeting.world,
                    threads=engine.fingerprint()["threads"],
                    gradient_bytes=gradients,
                    state_bytes=state,
                    peak_bytes=peak,
                    **timing.fields(),
                )
                send(events, measured)
        return ExitCode.COMPLETED

    def _steps(self, samples: int, task: Task, engine: Engine, meeting: Meeting) -> Timing:
        """Measures steps that all processes begin at the same time. A step ends when the slowest process is done."""
        whole = min(samples, len(task.train))
        order = Order(task.config.seed, len(task.train) // whole * whole, whole)  # leaves out the shorter last step of an epoch
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


def remove_world_variables(framework: Framework) -> None:
    """Removes the variables that make this process join a world."""
    for name in framework.world_variables:
        os.environ.pop(name, None)
