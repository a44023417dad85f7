"""Jobs and statuses for the tests of this folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, FailureClass, Reason, TrainingJobStatus

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def job(status: TrainingJobStatus | None = None, **spec: Any) -> TrainingJob:
    document = {
        "apiVersion": "muster.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny"},
        "spec": {"strategy": "DDP", "trainer": {"script": "train.py"}, "roles": {"worker": {"replicas": 2}}, **spec},
    }
    read = TrainingJob.model_validate(document)
    return read.with_status(status) if status else read


def failed(number: int = 0, **fields: Any) -> AttemptRecord:
    return AttemptRecord(
        attempt=number,
        start_time=NOW,
        **{
            "end_time": NOW + timedelta(seconds=9),
            "reason": Reason.PROCESS_KILLED,
            "failure_class": FailureClass.INFRASTRUCTURE,
            "settled": True,
            "replica": "worker-1",
            "message": "ended by signal 9",
            **fields,
        },
    )
