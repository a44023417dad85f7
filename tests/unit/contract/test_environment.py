"""The variables of a replica, written and read."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muster_contract.environment import NAMES, PREFIX, PROCESS_VARIABLES, ReplicaEnvironment, expanded, path_in, variables
from muster_contract.errors import BadConfiguration

VALUES: dict[str, Any] = {
    "job": "default/digits",
    "job_uid": "8e1a",
    "job_created": datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC),
    "strategy": "DDP",
    "role": "worker",
    "index": 0,
    "attempt": 2,
    "processes": 4,
    "trainer": '{"strategy": {"name": "A", "framework": {"name": "B", "package": "c"}}, "task": "digits", "batch": {"globalSize": 8}}',
    "pod_name": "digits-worker-0",
    "pod_uid": "77",
    "first_rank": 0,
    "world_size": 8,
    "standby": True,
    "state_dir": Path("/tmp/state"),
    "coordinator": "https://muster",
}
ENVIRONMENT = variables(**VALUES)


def test_written_variables_are_read_as_the_same_values() -> None:
    assert ReplicaEnvironment.from_environment({**ENVIRONMENT, "HOME": "/root"}) == ReplicaEnvironment(**VALUES)


def test_variables_are_named_after_their_fields() -> None:
    assert ENVIRONMENT["MUSTER_JOB_CREATED"] == "2026-11-21T11:16:14Z"
    assert ENVIRONMENT["MUSTER_STANDBY"] == "1"
    assert all(name.startswith(PREFIX) for name in (*NAMES.values(), *PROCESS_VARIABLES))


def test_empty_values_are_left_out_and_read_as_absent() -> None:
    assert variables(coordinator=None, coordinator_authority="", standby=False, index=0) == {"MUSTER_INDEX": "0"}
    environment = ReplicaEnvironment.from_environment({**ENVIRONMENT, "MUSTER_COORDINATOR": "", "MUSTER_STATE_DIR": ""})
    assert (environment.coordinator, environment.state_dir) == (None, Path("/run/muster"))
    assert path_in({}, "termination_log") == Path("/dev/termination-log")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MUSTER_JOB", ""),
        ("MUSTER_TRAINER", ""),
        ("MUSTER_INDEX", "-1"),
        ("MUSTER_INDEX", "1.0"),
        ("MUSTER_INDEX", "٣"),
        ("MUSTER_INDEX", "1" * 10),
        ("MUSTER_PROCESSES", "0"),
        ("MUSTER_JOB_CREATED", "yesterday"),
    ],
)
def test_a_wrong_or_missing_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(BadConfiguration, match=name):
        ReplicaEnvironment.from_environment({**ENVIRONMENT, name: value})
    with pytest.raises(TypeError):
        ReplicaEnvironment(**{**VALUES, "unknown": 1})


def test_the_trainer_spec_is_decoded_on_use() -> None:
    assert ReplicaEnvironment.from_environment(ENVIRONMENT).trainer_spec.task == "digits"
    broken = ReplicaEnvironment.from_environment({**ENVIRONMENT, "MUSTER_TRAINER": "{"})
    with pytest.raises(BadConfiguration, match="MUSTER_TRAINER is not JSON"):
        _ = broken.trainer_spec


def test_a_text_of_many_unfinished_references_takes_no_long_time() -> None:
    text = "$(" * 30_000
    began = time.process_time()
    assert expanded(text, {"A": "b"}) == text
    assert time.process_time() - began < 10  # 0.2 s; without a limit of the name it took 24 s
