"""The content of MUSTER_TRAINER."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster_contract.codes import ExitCode, reason_of
from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import CheckpointSpec, InputSpec, TrainerSpec
from tests.support import descriptors

EXAMPLE: dict[str, Any] = {
    "strategy": descriptors.document(),
    "task": "digits",
    "config": {"epochs": 5},
    "batch": {"globalSize": 64, "accumulationSteps": 2, "learningRateScaling": "Linear"},
    "input": {"workers": 0, "prefetch": 3, "shard": "File", "cache": "/dev/shm/c"},
    "options": {},
    "communication": "Auto",
    "checkpoint": {"directory": "/c/d", "resume": "Auto", "everySteps": 100, "everySeconds": None, "keep": 3, "async": False},
    "graceSeconds": 30,
}


def test_the_documented_example_is_read() -> None:
    spec = TrainerSpec.from_json(json.dumps(EXAMPLE))
    assert (spec.entry_point, spec.task, spec.config) == ("task", "digits", {"epochs": 5})
    assert (spec.batch.global_size, spec.batch.accumulation_steps, spec.batch.learning_rate_scaling) == (64, 2, "Linear")
    assert spec.input == InputSpec(0, 3, "File", Path("/dev/shm/c"))
    assert spec.checkpoint == CheckpointSpec("/c/d", "Auto", 100, None, 3, asynchronous=False)
    assert spec.grace_seconds == 30.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None}, "task, module, script, command .*none"),
        ({"script": "x.py"}, "task and script"),
        ({"task": None, "command": []}, r"MUSTER_TRAINER\.command: "),
        ({"task": None, "command": "ls"}, r"MUSTER_TRAINER\.command"),
        ({"task": 3}, r"MUSTER_TRAINER\.task: .* 3"),
        ({"batch": None}, r"MUSTER_TRAINER\.batch: "),
        ({"batch": {"globalSize": 0}}, r"MUSTER_TRAINER\.batch\.globalSize: .*at least 1"),
        ({"batch": {"globalSize": True}}, r"batch\.globalSize"),
        ({"input": {"workers": -1}}, r"MUSTER_TRAINER\.input\.workers: .*at least 0"),
        ({"config": []}, r"MUSTER_TRAINER\.config"),
        ({"checkpoint": {}}, r"MUSTER_TRAINER\.checkpoint\.directory"),
        ({"checkpoint": {"directory": "/c", "keep": "3"}}, r"checkpoint\.keep"),
        ({"checkpoint": {"directory": "/c", "async": "yes"}}, r"checkpoint\.async: "),
        ({"graceSeconds": -1}, r"MUSTER_TRAINER\.graceSeconds"),
        ({"options": {"gradientCompression": "Zip"}}, r"MUSTER_TRAINER\.options\.gradientCompression"),
        ({"options": {"mesh": {"data": 0}}}, r"MUSTER_TRAINER\.options\.mesh\.data"),
        ({"options": {"pipeline": {"schedule": "Zigzag"}}}, r"MUSTER_TRAINER\.options\.pipeline\.schedule"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfiguration, match=message):
        TrainerSpec.from_json(json.dumps({**EXAMPLE, **changes}))


def test_a_spec_without_input_gets_the_defaults_of_the_trainer() -> None:
    assert TrainerSpec.from_json(json.dumps({**EXAMPLE, "input": None})).input == InputSpec()


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(BadConfiguration, match=r"MUSTER_TRAINER .*JSON"):
        TrainerSpec.from_json("{")


def test_exit_codes_have_the_reasons_of_the_contract() -> None:
    assert {int(code): code.reason for code in ExitCode} == {
        0: "Completed",
        10: "UserError",
        11: "BadConfiguration",
        20: "PeerLost",
        21: "Preempted",
        22: "PreemptedNotSaved",
        30: "CheckpointDamaged",
        31: "StorageUnavailable",
        32: "InputUnavailable",
        33: "InputRefused",
    }
    assert (reason_of(137), reason_of(99)) == ("ProcessKilled", "UserError")
