"""Whatever a job file holds, it is a job, or the error says which field or line to mend."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.admission.changes import changes
from muster.admission.read import InvalidJobFileError, parse_job, read_job
from muster.admission.validate import problems
from muster.admission.yaml_text import write_yaml
from muster.api.job import TrainingJob
from muster.api.spec import CHIEF, EVALUATOR, PS, WORKER, Communication, TrainingJobSpec
from muster.strategies.registry import STRATEGIES

GOOD: dict[str, Any] = {
    "apiVersion": "muster.dev/v1beta1",
    "kind": "TrainingJob",
    "metadata": {"name": "digits", "labels": {"a": "b"}},
    "spec": {
        "strategy": "DDP",
        "trainer": {"task": "digits", "config": {"epochs": 5, "learningRate": 0.05}},
        "roles": {
            "worker": {
                "replicas": 2,
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "template": {
                    "metadata": {"labels": {"c": "d"}},
                    "spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "b"}]}]},
                },
            }
        },
        "options": {"loop": "Custom"},
        "batch": {"globalSize": 64},
        "checkpoint": {"storage": {"uri": "s3://a/b"}, "everySteps": 10},
        "elastic": {"minReplicas": 1, "maxReplicas": 4},
        "recovery": {"infrastructure": {"limit": 3}},
        "suspend": False,
    },
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5000)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["worker", "DDP", "Auto", "MUSTER_X", "RANK", "16Gi", "file:///a", "s3://", "a.b", "2x4", "trainer", "task", "<<", "\0"]
    )
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of plain data, the whole first."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, child in steps for each in paths(child, (*path, key)))]


@st.composite
def near_valid(draw: st.DrawFn) -> dict[str, Any]:
    """A good job with a few of its parts taken out, replaced or added to."""
    job = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(paths(job)[1:]))
        *above, last = path
        parent: Any = job
        for key in above:
            parent = parent[key]
        match draw(st.sampled_from(["remove", "replace", "add"])):
            case "remove":
                del parent[last]
            case "replace":
                parent[last] = draw(anything)
            case "add" if isinstance(parent, dict):
                parent[
                    draw(st.text(min_size=1, max_size=12) | st.sampled_from(["ps", "chief", "evaluator", "script", "command", "hostname"]))
                ] = draw(anything)
        if not job:
            break
    return job


@st.composite
def well_typed(draw: st.DrawFn) -> dict[str, Any]:
    """A job whose types are right and whose parts need not fit together."""
    count = st.integers(1, 6)
    role = st.fixed_dictionaries({}, optional={"replicas": count, "processesPerReplica": count})
    spec = st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(list(STRATEGIES)),
            "trainer": st.sampled_from([{"task": "digits"}, {"module": "a.b"}, {"command": ["a"]}, {}]),
        },
        optional={
            "roles": st.fixed_dictionaries({}, optional=dict.fromkeys((WORKER, PS, CHIEF, EVALUATOR), role)),
            "batch": st.fixed_dictionaries({"globalSize": st.integers(1, 40)}),
            "communication": st.sampled_from([value.value for value in Communication]),
            "elastic": st.fixed_dictionaries({"minReplicas": count, "maxReplicas": count}),
            "options": st.fixed_dictionaries(
                {},
                optional={
                    "pipeline": st.fixed_dictionaries(
                        {},
                        optional={
                            "stages": count,
                            "microBatches": count,
                            "schedule": st.sampled_from(["GPipe", "1F1B", "PipeDream"]),
                        },
                    ),
                    "mesh": st.fixed_dictionaries({}, optional={"data": count, "pipeline": count, "tensor": count}),
                    "tpu": st.fixed_dictionaries(
                        {}, optional={"accelerator": st.just("tpu-v5-lite-podslice"), "topology": st.sampled_from(["2x2", "0x0", "2x2x2"])}
                    ),
                    "logicalDevices": count,
                    "loop": st.just("Fit"),
                },
            ),
            "suspend": st.booleans(),
        },
    )
    return {**GOOD, "spec": draw(spec)}


def accepted(text: str) -> TrainingJob | None:
    """The job in a text; None where it is refused as it should be."""
    try:
        return parse_job(text, source="job.yaml")
    except InvalidJobFileError as refused:
        error = refused
    lines = str(error).splitlines()
    assert len(lines) == len(error.problems) > 0
    assert all(line.startswith("job.yaml:") for line in lines)
    assert all(problem.message for problem in error.problems)
    return None


def check_accepted(job: TrainingJob) -> None:
    assert problems(job) == []
    assert TrainingJob.model_validate(job.wire()) == job
    again = parse_job(write_yaml(job.manifest()), source="again")
    assert again.spec == job.spec
    assert again.metadata == job.metadata
    assert changes(job, again) == []


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=200) | st.text(alphabet="ab: -[]{}&*!|>\"'\n\t#?,.<10~", max_size=80))
def test_any_text_is_a_job_or_an_error_with_its_place(text: str) -> None:
    assert accepted(text) is None


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("jobs") / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidJobFileError, match=r"job\.yaml"):
        read_job(path)


@settings(deadline=None, max_examples=300)
@given(near_valid(), st.booleans())
def test_a_damaged_job_is_refused_with_a_field_or_is_a_whole_job(data: dict[str, Any], as_json: bool) -> None:
    job = accepted(json.dumps(data) if as_json else yaml.safe_dump(data, sort_keys=False))
    if job is not None:
        check_accepted(job)


@settings(deadline=None, max_examples=300)
@given(well_typed())
def test_rules_never_break_on_a_job_whose_types_are_right(data: dict[str, Any]) -> None:
    TrainingJobSpec.model_validate(data["spec"])
    job = accepted(yaml.safe_dump(data, sort_keys=False))
    if job is not None:
        check_accepted(job)
