"""Names of settings that resemble those that all programs share."""

import pytest

from muster_contract.config import MOST_SLIPS, slips, unknown_keys
from muster_contract.tasks import TASKS

KEYS = TASKS["digits"].keys


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("epoch", "epochs"),
        ("lr", "learningRate"),
        ("learning_rate", "learningRate"),
        ("num_epochs", "epochs"),
        ("warmup_steps", "warmupSteps"),
    ],
)
def test_a_slip_in_a_shared_setting_is_found(name: str, meant: str) -> None:
    assert [message.endswith(f"did you mean {meant}?") for _, message in slips({name: 1})] == [True]
    assert [message.endswith(f"did you mean {meant}?") for _, message in unknown_keys({name: 1}, KEYS)] == [True]


@pytest.mark.parametrize("name", ["layers", "hidden", "dropout", "batch", "epochs", "data"])
def test_other_settings_of_a_program_are_no_slips(name: str) -> None:
    assert list(slips({name: 1})) == []


def test_a_setting_that_resembles_none_is_unknown_to_a_task() -> None:
    [(name, message)] = unknown_keys({"zzz": 1, "hidden": [8]}, KEYS)
    assert name == "zzz"
    assert "hidden" in message


def test_the_names_of_a_hostile_config_are_not_all_compared() -> None:
    assert len(list(unknown_keys({f"key{number}": 1 for number in range(4000)}, KEYS))) == MOST_SLIPS
