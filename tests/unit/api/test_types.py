"""The API types themselves: descriptions, wire names, quantities."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from muster.api.base import ApiModel
from muster.api.job import TrainingJob
from muster.api.quantity import amount_of, with_more_mib
from muster.api.spec import Resources
from muster.api.status import TrainingJobStatus, described
from muster.strategies.registry import is_reserved_env


def models(model: type[ApiModel]) -> set[type[ApiModel]]:
    """The model and all models that it contains."""
    seen: set[type[ApiModel]] = {model}
    pending = [model]
    while pending:
        for field in pending.pop().model_fields.values():
            for part in (field.annotation, *(inner for arg in get_args(field.annotation) for inner in (arg, *get_args(arg)))):
                if isinstance(part, type) and issubclass(part, ApiModel) and part not in seen:
                    seen.add(part)
                    pending.append(part)
    return seen


@pytest.mark.parametrize("model", sorted(models(TrainingJob), key=str))
def test_every_field_is_described_and_has_a_camel_case_name(model):
    for name, field in model.model_fields.items():
        assert field.description, name
        assert "_" not in (field.alias or name)


def test_every_field_of_the_status_is_described_and_has_a_camel_case_name() -> None:
    with described():
        schema = TypeAdapter(TrainingJobStatus).json_schema(by_alias=True)
    parts = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]
    assert len(parts) > 10
    for part in parts:
        for name, field in part["properties"].items():
            assert field.get("description"), (part["title"], name)
            assert "_" not in name


def test_a_status_with_a_value_of_another_type_is_not_written() -> None:
    with pytest.raises(PydanticSerializationError):
        replace(TrainingJobStatus(), attempts=[{"start_time": 0}]).wire()  # type: ignore[arg-type]


def test_a_job_is_unchanged_after_encoding_and_decoding():
    job = TrainingJob.model_validate(
        {
            "metadata": {"name": "a", "creationTimestamp": "2026-11-21T10:00:00.5+02:00"},
            "spec": {"strategy": "DDP", "trainer": {"task": "digits"}},
        }
    )
    assert job.wire()["metadata"]["creationTimestamp"] == "2026-11-21T08:00:00Z"
    assert TrainingJob.model_validate(job.wire()) == job


def test_a_job_cannot_be_changed_in_place():
    job = TrainingJob.model_validate({"metadata": {"name": "a"}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}})
    with pytest.raises(ValidationError):
        job.spec.suspend = True


@pytest.mark.parametrize("quantity", [4, "4", "0.5", "500m", "16Gi", "1e3", "2k", ".5", "-1"])
def test_a_quantity_is_a_whole_number_or_kubernetes_notation(quantity):
    assert Resources.model_validate({"limits": {"cpu": quantity}}).limits == {"cpu": quantity}


@pytest.mark.parametrize("quantity", [0.5, True, None, [], "", "16 GB", "16GB", "1e", "m", "4\n", "1" * 65])
def test_an_invalid_quantity_is_refused(quantity):
    with pytest.raises(ValidationError):
        Resources.model_validate({"limits": {"cpu": quantity}})


@pytest.mark.parametrize(
    ("name", "reserved"), [("RANK", True), ("PET_X", True), ("MUSTER_JOB", True), ("TF_CONFIG", True), ("NCCL_DEBUG", False)]
)
def test_reserved_environment_names_are_recognised(name, reserved):
    assert is_reserved_env(name) is reserved


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        (4, "4"),
        ("500m", "0.5"),
        ("-1.5Ki", "-1536"),
        (".5k", "500"),
        ("1E", "1e18"),
        ("1E3", "1000"),
        ("2e-3", "0.002"),
        ("1e99999999999999999999", "9223372036854775807"),
        ("-1e9999", "-9223372036854775807"),
        ("1e-99999999999999999999", "0"),
        ("1e3k", None),
        ("1 Gi", None),
        ("", None),
        (None, None),
    ],
)
def test_a_quantity_stands_for_the_number_of_kubernetes(quantity: object, amount: str | None) -> None:
    assert amount_of(quantity) == (None if amount is None else Decimal(amount))


@pytest.mark.parametrize(
    ("quantity", "more"),
    [("1Gi", "1034Mi"), ("1", "11Mi"), (2**20 + 1, "12Mi"), ("1e9999", "8796093022218Mi"), ("1e99999999999", "8796093022218Mi")],
)
def test_memory_is_added_to_any_quantity(quantity: str | int, more: str) -> None:
    assert with_more_mib(quantity, 10) == more
