"""What rank 0 reports of the steps: events, summaries, lines of the log. Other ranks report how fast they work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from muster_contract.errors import LossNotFinite
from muster_contract.events import Step
from muster_contract.notices import NoticeReason
from muster_contract.printed import epoch_line
from muster_trainer.data.stall import Stall
from muster_trainer.host.memory import peak_bytes
from muster_trainer.training.agreement import of_all
from muster_trainer.training.engine import StepOutcome, rate_share
from muster_trainer.training.pace import Pace
from muster_trainer.training.run import Run
from muster_trainer.training.summaries import Summaries

_SAMPLES_NAMED = 8
_NAN_LOSS_EFFECTS = {"nanLoss: Skip": "leaves out such steps", "nanLoss: Continue": "goes on"}


def nan_loss_remedies(refused: Collection[str]) -> str:
    """The remedies for a loss that is not a finite number, without those that the engine has `refused` (`Engine.refuses`)."""
    clip = "" if "gradientClipNorm" in refused else "gradientClipNorm, or "
    others = [f"{setting} {effect}" for setting, effect in _NAN_LOSS_EFFECTS.items() if setting not in refused]
    return f"Write a smaller learningRate, or {clip}look for a bad sample" + "".join(f"; {other}" for other in others)


class StepReports:
    """`stalenesses` are those of the steps of this process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.stalenesses: list[int] = []
        self._summaries = Summaries(None, attempt=run.env.attempt, first_step=1, notice=run.events.notice)
        self._stall, self._pace = Stall(), Pace()
        self._had_nan_loss = False

    def open(self, first: int) -> None:
        """Begins new summaries, for an attempt that trains after step `first`."""
        run = self._run
        directory = run.env.tensorboard_dir if run.engine.rank == 0 else None
        self._summaries = Summaries(directory, attempt=run.env.attempt, first_step=first + 1, notice=run.events.notice)

    def close(self) -> None:
        """Ends the summaries."""
        self._summaries.close()

    def write(self, done: int, scalars: dict[str, float]) -> None:
        """Writes summaries at a step."""
        self._summaries.write(done, scalars)

    def report_step(self, event: Step, *, is_delayed: bool) -> None:
        """Reports a step of rank 0. A delayed event is sent later, with a snapshot."""
        run, done, seconds = self._run, event.step, event.seconds
        if event.staleness is not None:
            self.stalenesses.append(event.staleness)
        if not is_delayed:
            run.events.emit(event)
        rates = {
            "samples_per_second": event.samples / max(seconds, 1e-9),
            "learning_rate": run.engine.learning_rate * rate_share(run.task, done - 1),
        }
        self.write(done, {"loss": event.loss_value, "input_share": event.input_seconds / max(seconds, 1e-9), **rates})
        if message := self._stall.add(seconds=seconds, waited=event.input_seconds):
            run.events.notice(NoticeReason.INPUT_STALLED, message)
        epoch, rest = divmod(done, run.order.steps_per_epoch)
        if not rest:
            waited = f", {self._stall.share:.0%} of the time waiting for samples"
            run.events.say(epoch_line(epoch, run.task.config.epochs, step=done, loss=event.loss_value) + waited)

    def handle_nan_loss(self, step: int, loss: float) -> None:
        """Applies `nanLoss` when the loss is not a finite number. With Skip, the engine has left out the update."""
        run, policy = self._run, self._run.task.config.nanLoss
        problem = f"the loss of step {step + 1} (epoch {run.order.epoch(step) + 1}) is {loss}"
        if policy == "Stop":
            samples = ", ".join(map(str, run.order.batch_indices(step)[:_SAMPLES_NAMED]))
            message = f"{problem}; its batch begins with the samples {samples} of the data set. {nan_loss_remedies(run.engine.refuses)}"
            run.done = None  # the state has such numbers, so no world may continue from it
            raise of_all(run.engine, LossNotFinite(message))
        if run.engine.rank == 0 and not self._had_nan_loss:
            done = "is left out (nanLoss: Skip)" if policy == "Skip" else "is used nevertheless (nanLoss: Continue)"
            run.events.notice(NoticeReason.LOSS_NOT_FINITE, f"{problem}: its gradient {done}; further ones are not reported")
        self._had_nan_loss = True

    def add_pace(self, step: int, outcome: StepOutcome, *, seconds: float, after_votes: float) -> None:
        """Reports now and then how long this rank worked without waiting. `after_votes`: seconds of the step after its collectives."""
        own = None if outcome.own_seconds is None else outcome.own_seconds + after_votes
        pace = self._pace.add(seconds=seconds, own=own, whole=outcome.measures_passes)
        if pace is not None:
            self._run.events.emit(replace(pace, step=step + 1))

    def report_pace(self) -> None:
        """Reports the times of all steps."""
        self._run.events.emit(replace(self._pace.sums(), peak_bytes=peak_bytes(self._run.spec.strategy.framework)))
