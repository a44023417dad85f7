"""A training without a framework, for tests of what surrounds the steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from muster_contract.events import Step
from muster_contract.trainer_spec import CheckpointSpec


def run_of(engine: Any, *, done: int | None = 13, attempt: int = 3, checkpoint: CheckpointSpec | None = None, **fields: Any) -> Any:
    """The run of a rank at a step. A manifest of it is (step, reason). It keeps the events, notices and phases that are `sent`."""
    run: Any = SimpleNamespace(
        engine=engine,
        done=done,
        last=Step(step=done, loss="0.5") if done is not None else None,
        is_stopping=False,
        total=60,
        env=SimpleNamespace(attempt=attempt, state_dir=Path("absent")),
        spec=SimpleNamespace(checkpoint=checkpoint, snapshots=None),
        stop=SimpleNamespace(requested=False),
        task=SimpleNamespace(title="task", identity={}),
        identity={},
        sent=[],
        notices=[],
        phases=[],
        manifest=lambda step, reason: (step, reason),
    )
    vars(run).update(fields)
    run.warn = lambda reason, message: run.notices.append((reason, message))
    run.events = SimpleNamespace(
        rank=engine.rank,
        emit=run.sent.append,
        notice=lambda reason, message: run.notices.append((reason, message)),
        phase=run.phases.append,
        say=lambda _: None,
        complain=lambda _: None,
        error=lambda code, message: None,
        fingerprint=lambda _: None,
    )
    return run
