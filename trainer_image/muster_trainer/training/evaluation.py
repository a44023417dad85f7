"""Evaluations between two steps, and the export of the trained model."""

from __future__ import annotations

import time

from muster_contract.events import Activity, Evaluation
from muster_contract.notices import NoticeReason
from muster_trainer.checkpoint.objects import Location
from muster_trainer.data import batches_in_order
from muster_trainer.export import Export
from muster_trainer.training.agreement import agree
from muster_trainer.training.run import Run
from muster_trainer.training.step_reports import StepReports


def is_evaluation_due(run: Run, done: int) -> bool:
    epoch, rest = divmod(done, run.order.steps_per_epoch)
    every = run.task.config.evaluateEveryEpochs
    return rest == 0 and every > 0 and epoch % every == 0


def evaluate(run: Run, reports: StepReports, done: int) -> None:
    """Measures the model with the test set, if there is one."""
    if run.task.test is None:
        return
    run.events.phase(Activity.EVALUATING)
    began = time.monotonic()
    metrics = dict(run.engine.evaluate(batches_in_order(len(run.task.test), run.spec.batch.global_size)))
    if stalenesses := reports.stalenesses:
        metrics |= {"stalenessMean": sum(stalenesses) / len(stalenesses), "stalenessMost": max(stalenesses)}
    if run.engine.rank == 0:
        run.events.emit(Evaluation(step=done, metrics=metrics, seconds=time.monotonic() - began))
        reports.write(done, {f"test/{name}": value for name, value in metrics.items()})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        run.events.say(f"test set at step {done}: {shown}")
    if done < run.total:
        run.events.phase(Activity.TRAINING)


def write_export(run: Run, export: Export, path: Location) -> None:
    """Rank 0 exports the checkpoint at `path` while the others wait, so that all ranks raise its error."""
    batches = batches_in_order(export.samples, run.spec.batch.global_size)
    trained = {} if run.task.test is None else run.engine.evaluate(batches)
    run.events.phase(Activity.SAVING)
    devices = "cpu" if set(run.engine.fingerprint()["devices"]) == {"cpu"} else "gpu"
    messages = agree(run.engine, lambda: export.write(path, step=run.total, trained=trained, devices=devices))
    for message in messages:
        if run.engine.rank == 0:
            run.events.notice(NoticeReason.MODEL_EXPORTED, message)
            run.events.say(message)
