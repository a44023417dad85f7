"""Numbers and times at their limits, in statuses that anybody could write and in specs that users write: no pass fails over them."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.admission import definitions
from muster.api.times import LATEST
from tests.property.hostile_worlds import CREATED, HostileWorld, Schema, places, schema_at, value_of

SCHEMA = definitions.schema()["properties"]
SETTINGS = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
TIMES = st.sampled_from([timedelta(0), timedelta(seconds=16), timedelta(seconds=61), timedelta(days=31), timedelta(days=4000)])
REPORTS = st.sampled_from(["", "ordinary", "largest", "ended", "forged"])

DDP: dict[str, Any] = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}
SPECS: dict[str, dict[str, Any]] = {
    "DDP": DDP,
    "program": {**DDP, "trainer": {"script": "train.py"}},
    "elastic": {**DDP, "elastic": {"minReplicas": 1, "maxReplicas": 4}, "batch": {"globalSize": 64}},
    "spares": {**DDP, "strategy": "FSDP", "recovery": {"spares": 1}, "checkpoint": {"memory": {"sizeMib": 64}}},
    "Pipeline": {**DDP, "strategy": "Pipeline"},
    "ParameterServer": {
        **DDP,
        "strategy": "ParameterServer",
        "roles": {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {"replicas": 1}},
    },
}


def world_of(spec: dict[str, Any]) -> HostileWorld:
    metadata = {"name": "digits", "namespace": "default", "uid": "job", "generation": 1, "creationTimestamp": "2026-11-21T10:00:00Z"}
    return HostileWorld({"metadata": metadata, "spec": spec, "status": {}}, SCHEMA["status"])


def test_the_jobs_of_these_tests_are_accepted() -> None:
    assert [name for name, spec in SPECS.items() if not is_accepted(world_of(spec))] == []


def is_accepted(world: HostileWorld) -> bool:
    return not world.admission.admit(world.job).problems


def put(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    """The value with another part at the path."""
    if not path:
        return part
    step, *rest = path
    changed = copy.copy(value) if value is not None else {}
    inner = changed.get(step) if isinstance(changed, dict) else changed[step]
    changed[step] = put(inner, tuple(rest), part)
    return changed


def go_on(world: HostileWorld, data: st.DataObject) -> None:
    """Time passes, supervisors report, and a pod ends."""
    for _ in range(data.draw(st.integers(1, 3))):
        world.settle(data.draw(REPORTS))
        world.pass_time(data.draw(TIMES))
        if world.views and data.draw(st.booleans()):
            world.fail(finished=data.draw(st.sampled_from([CREATED, world.now, LATEST])))
        world.settle()


@settings(SETTINGS, max_examples=200)
@given(data=st.data(), spec=st.sampled_from(list(SPECS.values())), changes=st.integers(1, 5))
def test_no_status_that_the_api_server_accepts_makes_a_pass_fail(data: st.DataObject, spec: dict[str, Any], changes: int) -> None:
    world = world_of({**spec, "suspend": False})
    go_on(world, data)
    for _ in range(changes):
        path = data.draw(st.sampled_from(places(world.job["status"], SCHEMA["status"])))
        world.job["status"] = put(world.job["status"], path, data.draw(value_of(schema_at(SCHEMA["status"], path))))
    if data.draw(st.booleans()):
        world.job = put(put(world.job, ("spec", "suspend"), True), ("metadata", "generation"), 2)
    go_on(world, data)


def numbers(schema: Schema, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], list[int]]:
    """The least and the largest value of each number of the schema, and one beside."""
    if schema.get("type") == "integer":
        least, most = schema["minimum"], schema["maximum"]
        return {path: [least, least + 1, (least + most) // 2, most - 1, most]}
    parts = {name: each for name, each in schema.get("properties", {}).items() if name not in ("template", "config")}
    if path == ("roles",):
        parts = dict.fromkeys(("worker", "ps", "chief"), schema["additionalProperties"])
    found = {}
    for name, each in parts.items():
        found |= numbers(each, (*path, name))
    return found


NUMBERS = numbers(SCHEMA["spec"])
QUANTITIES = ["1e9999999", "-1", "9223372036854775807", "0.000000001", "1n", "9999999999Ei", 2**63, 999_999_999, 0]
RESOURCES = [("roles", "worker", "resources", "limits", name) for name in ("cpu", "memory", "nvidia.com/gpu", "google.com/tpu")]
EXTREMES: dict[tuple[Any, ...], list[Any]] = {**NUMBERS, **dict.fromkeys(RESOURCES, QUANTITIES)}


@settings(SETTINGS, max_examples=40)
@given(data=st.data(), spec=st.sampled_from(list(SPECS.values())))
def test_no_numbers_of_an_accepted_spec_make_a_pass_fail(data: st.DataObject, spec: dict[str, Any]) -> None:
    world = world_of(spec)
    for path in data.draw(st.lists(st.sampled_from(list(EXTREMES)), min_size=1, max_size=8, unique=True)):
        changed = world_of(put(world.job["spec"], path, data.draw(st.sampled_from(EXTREMES[path]))))
        if is_accepted(changed):
            world = changed
    go_on(world, data)


def test_every_number_of_a_spec_has_limits() -> None:
    assert len(NUMBERS) > 30
    assert all(-1 <= values[0] < values[-1] < 2**32 for values in NUMBERS.values())
