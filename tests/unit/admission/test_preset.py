"""Invalid presets, and the messages for their owners."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.preset import preset_problems
from muster.api.preset import TrainingPreset
from tests.support.presets import preset


def problems_in(obj: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each.field, each.message) for each in preset_problems(TrainingPreset.model_validate(obj))]


def trainer(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **container}]}}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_the_example_is_valid() -> None:
    assert problems_in(preset()) == []


OURS = [{"name": "MUSTER_JOB", "value": "x"}]


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        (
            {"template": trainer(env=OURS)},
            "spec.template.spec.containers[0].env[0].name",
            "that Muster does not set",
        ),
        ({"template": trainer(command=["sh"])}, "spec.template.spec.containers[0].command", "write spec.trainer.command"),
        ({"template": {"spec": {"hostname": "x"}}}, "spec.template.spec.hostname", "leave it out"),
        ({"template": {"kind": "Pod"}}, "spec.template.kind", "is not a field of a pod template"),
        ({"roles": {"worker": {"template": {"spec": {"volumes": [{}]}}}}}, "spec.roles.worker.template.spec.volumes[0]", "with a name"),
        ({"images": {"PyTorch": "a b"}}, "spec.images.PyTorch", "without spaces"),
        ({"template": {"metadata": {"annotations": deep(40)}}}, "spec.template", "levels deep"),
    ],
)
def test_a_preset_obeys_the_rules_of_a_jobs_template(spec: dict[str, Any], field: str, message: str) -> None:
    [(path, text), *_] = problems_in(preset(**spec))
    assert path == field
    assert message in text


@pytest.mark.parametrize("variable", ["NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_TLS", "LD_PRELOAD"])
def test_variables_of_communication_libraries_are_not_reserved(variable: str) -> None:
    assert problems_in(preset(template=trainer(env=[{"name": variable, "value": "1"}]))) == []


@pytest.mark.parametrize(("name", "valid"), [("h100-8", True), ("gpu.large", True), ("a" * 64, False), ("-x", False), ("A\x1b[31m", False)])
def test_a_preset_has_a_name_that_a_job_can_write(name: str, valid: bool) -> None:
    assert [field for field, _ in problems_in(preset(name))] == ([] if valid else ["metadata.name"])
