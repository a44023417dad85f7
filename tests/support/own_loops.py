"""The environment of a program of the user, for tests of `muster_training` without a supervisor."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster_contract.environment import ReplicaEnvironment, variables
from muster_contract.trainer_spec import BatchSpec, CheckpointSpec, TrainerSpec
from tests.support import descriptors

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)


def own_environment(folder: Path | str | None = None, *, rank: int | None = 0, world: int = 1, **changed: Any) -> dict[str, str]:
    """The variables of one process of a `script`. `folder` is the storage. Without it the job has none."""
    checkpoint = CheckpointSpec(directory=str(folder)) if folder else None
    spec = TrainerSpec(strategy=descriptors.runtime(), batch=BatchSpec(), script="train.py", checkpoint=checkpoint)
    values: dict[str, Any] = {
        "job": "default/test",
        "job_uid": "job-uid",
        "job_created": CREATED,
        "strategy": "DDP",
        "role": "worker",
        "index": 0,
        "attempt": 0,
        "processes": 1,
        "trainer": spec.to_json(),
        "pod_name": "test-worker-0",
        "pod_uid": "pod-uid",
        "first_rank": rank,
        "world_size": world,
        "world_address": "127.0.0.1:29500",
        **changed,
    }
    return variables(**values)


def own_replica(folder: Path | str | None = None, **changed: Any) -> ReplicaEnvironment:
    return ReplicaEnvironment.from_environment(own_environment(folder, **changed))
