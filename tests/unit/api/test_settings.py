"""The shared settings of a job as fields, and in its `config`."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from muster.api.spec import Settings, Trainer
from muster.render.trainer import trainer_spec
from muster_contract.config import COMMON_KEYS, Key
from tests.unit.local.local_jobs import job

FIELDS = {info.alias: info for info in Settings.model_fields.values()}


def test_each_shared_setting_has_a_field() -> None:
    assert list(FIELDS) == [key.name for key in COMMON_KEYS]


@pytest.mark.parametrize("key", COMMON_KEYS, ids=lambda key: key.name)
def test_a_field_accepts_what_its_setting_does_and_nothing_of_another_type(key: Key) -> None:
    field = FIELDS[key.name]
    kinds = {kind for kind in get_args(field.annotation) if kind is not type(None)}
    values: list[Any] = list(key.values) or [key.default or "model"] if isinstance(key.default, str) else [key.default]
    for value in values:
        assert Settings.model_validate({key.name: value}).wire() == {key.name: value}
    assert {value for kind in kinds for value in get_args(kind)} == set(key.values)
    for wrong in ([], {}, "" if not isinstance(key.default, str) else 7, *(["sgd"] if key.values else [])):
        with pytest.raises(ValueError, match=key.name):
            Settings.model_validate({key.name: wrong})


def test_the_trainer_gets_the_fields_and_the_keys_of_config_together() -> None:
    settings = {"epochs": 3, "learningRate": 0.5, "export": "model"}
    made = job(trainer={"task": "digits", "settings": settings, "config": {"hidden": [8], "seed": 7, "epochs": 3}})
    assert trainer_spec(made.spec, None, processes=1, grace_seconds=1).config == {"hidden": [8], "seed": 7, **settings}


def test_a_job_without_settings_is_written_without_them() -> None:
    assert Trainer.model_validate({"task": "digits", "config": {"epochs": 2}}).all_settings == {"epochs": 2}
