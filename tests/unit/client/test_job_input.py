"""Jobs built in Python, in plain data and in files are the same job, and their problems are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import muster
from muster.client.job_input import checked

DATA: dict[str, Any] = {
    "apiVersion": "muster.dev/v1beta1",
    "kind": "TrainingJob",
    "metadata": {"name": "digits"},
    "spec": {
        "strategy": "DDP",
        "trainer": {"task": "digits", "config": {"epochs": 2}},
        "roles": {"worker": {"replicas": 2}},
        "checkpoint": {"everySteps": 50, "async": False},
    },
}


def built() -> muster.TrainingJob:
    return muster.job(
        "digits",
        strategy="DDP",
        trainer=muster.Trainer(task="digits", config={"epochs": 2}),
        roles={"worker": muster.Role(replicas=2)},
        checkpoint=muster.Checkpoint(every_steps=50, asynchronous=False),
    )


def test_a_job_is_the_same_in_python_as_data_and_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(DATA))
    jobs = [checked(given)[0] for given in (built(), DATA, file, str(file))]
    written = [job.model_dump(mode="json", by_alias=True, exclude_unset=True) for job in jobs]
    assert written == [DATA] * 4
    assert (checked(file)[1], checked(DATA)[1]) == (file, None)


def test_a_namespace_is_written_only_if_it_was_given() -> None:
    assert "namespace" not in checked(built())[0].metadata.model_fields_set
    assert checked(muster.job("digits", namespace="team", strategy="DDP", trainer=muster.Trainer(task="digits")))[0].key == "team/digits"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"straregy": "DDP"}, "spec.straregy"),
        ({"strategy": "DDPP"}, "spec.strategy"),
        ({"roles": {"worker": {"replicas": 0}}}, "spec.roles.worker.replicas: must be a whole number"),
        ({"batch": {"globalSiz": 64}}, "did you mean globalSize?"),
        ({"trainer": {}}, "spec.trainer"),
    ],
)
def test_each_problem_of_a_job_is_named_with_its_field(change: dict[str, Any], expected: str) -> None:
    fields = {"strategy": "DDP", "trainer": {"task": "digits"}, **change}
    with pytest.raises(muster.InvalidJobError, match=expected.replace("?", r"\?")):
        muster.job("digits", **fields)


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_settings_that_no_job_file_can_have_are_refused_in_one_line(value: object) -> None:
    trainer = muster.Trainer(task="digits", config={"rate": value})
    with pytest.raises(muster.InvalidJobError, match=r"spec\.trainer\.config: must have plain values only"):
        muster.job("digits", strategy="DDP", trainer=trainer)
    spec = muster.TrainingJobSpec(strategy="DDP", trainer=trainer)
    with pytest.raises(muster.InvalidJobError, match=r"digits: spec\.trainer\.config: must have plain values only") as raised:
        checked(muster.TrainingJob(metadata=muster.Metadata(name="digits"), spec=spec))
    assert len(str(raised.value).splitlines()) == 1


def test_optional_fields_may_be_none_in_python() -> None:
    job = muster.job("digits", strategy="DDP", trainer=muster.Trainer(task="digits"), elastic=None)
    assert "elastic" not in checked(job)[0].spec.model_fields_set
