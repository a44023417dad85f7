"""The first rung: this process keeps its state, and goes on in the next world (`muster_trainer.training.survivor`)."""

from __future__ import annotations

import os
from collections.abc import Callable

from muster_contract.environment import NAMES, ReplicaEnvironment
from muster_contract.errors import ConnectionLost, PeerLost
from muster_contract.events import Activity, ResumeSource
from muster_trainer.tasks.module import describe
from muster_trainer.training.resume_point import ResumePoint
from muster_trainer.training.run import Run
from muster_trainer.training.survivor import Survivor, SurvivorSteps


class Survivors:
    """`save_below` saves with the rungs below this one. It is called in a long wait, because the process may be lost as well."""

    source = ResumeSource.SURVIVORS

    def __init__(self, run: Run, save_below: Callable[[], None]) -> None:
        self._run, self._save_below = run, save_below
        self._survivor = Survivor(run.events, run.stop, attempt=run.env.attempt, disconnect=run.engine.disconnect)

    @property
    def may_wait(self) -> bool:
        """Whether this process may go on after the loss of a peer."""
        return self._run.engine.survival is not None and self._survivor.may_wait

    @property
    def steps(self) -> SurvivorSteps | None:
        """The steps of the states that survivors bring into this world. None in the first attempt."""
        survival = self._run.engine.survival
        return survival.survivor_steps if survival else None

    def offer(self) -> ResumePoint | None:
        steps = self.steps
        return None if steps is None or steps.newest is None else ResumePoint(step=steps.newest, source=self.source)

    def restore(self, point: ResumePoint) -> None:
        run = self._run
        if run.done != point.step:
            run.done = None
        assert run.engine.survival is not None
        run.engine.survival.adopt()

    def keep(self, error: PeerLost) -> bool:
        """Waits for the next attempt, and takes its variables. Returns whether this process continues in it, with the state after step
        `run.done`."""
        run, survival = self._run, self._run.engine.survival
        is_connection_lost = isinstance(error, ConnectionLost)
        if not is_connection_lost or survival is None or run.done is None or run.is_stopping or not self._survivor.may_wait:
            return False
        survival.abandon_world()
        return self._survivor.wait(done=run.done, last=run.last, message=str(error), rescue=self._save_below)

    def join(self, enter_attempt: Callable[[], None]) -> None:
        """Joins the next world, and reports as a new process does. `enter_attempt` takes the fence of its attempt. A rescue may need that
        before all ranks have joined, because rank 0 may have registered the attempt already, and then no older fence may save."""
        run, survival = self._run, self._run.engine.survival
        assert survival is not None
        assert run.done is not None
        run.env = ReplicaEnvironment.from_environment(os.environ)
        enter_attempt()
        with self._survivor.joining(self._save_in_advance) as meanwhile:
            try:
                survival.rejoin(run.done, meanwhile)
            except PeerLost:
                raise
            except Exception as error:  # after any error, a new process can join instead
                raise PeerLost(f"this process cannot go on in attempt {os.environ[NAMES['attempt']]}: {describe(error)}") from error
        run.events.fingerprint(run.engine.fingerprint())
        self._survivor.survived(run.done)

    def _save_in_advance(self) -> None:
        self._save_below()
        self._run.events.phase(Activity.STARTING)
