"""The bounds of the free parts of a spec."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.bounds import MAX_BYTES, MAX_DEPTH, MAX_VALUES, OutOfBounds, bound_problems, bounded


def out_of_bounds(config: Any) -> str:
    """The problems of a configuration. It is empty if there are none."""
    return "".join(problem.message for problem in bound_problems(bounded({"trainer": {"config": config}})))


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = [] if lists else {}
    for _ in range(levels - 1):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True])
def test_the_levels_of_a_value_have_a_limit(*, lists: bool) -> None:
    assert not out_of_bounds(nested(MAX_DEPTH, lists=lists))
    for levels in (MAX_DEPTH + 1, 1_000, 50_000):
        assert "levels deep" in out_of_bounds(nested(levels, lists=lists))


@pytest.mark.parametrize("fill", ["y", "é", "\ud800", "\x00"])
def test_the_bytes_of_a_value_have_a_limit(fill: str) -> None:
    bytes_each = {"y": 1, "é": 2, "\ud800": 3, "\x00": 6}[fill]  # as JSON
    assert not out_of_bounds({"x": fill * ((MAX_BYTES - 8) // bytes_each)})
    assert "bytes as JSON" in out_of_bounds({"x": fill * (MAX_BYTES // bytes_each)})


@pytest.mark.parametrize("each", [[], {}, {"": 0}, 0, ""])
def test_the_number_of_values_has_a_limit(each: Any) -> None:
    most = (MAX_VALUES - 2) // (2 if each == {"": 0} else 1)
    assert not out_of_bounds({"x": [each] * most})
    for count in (most + 1, 100_000):
        assert "too many values" in out_of_bounds({"x": [each] * count})
    assert "too many values" in out_of_bounds({str(number): each for number in range(MAX_VALUES)})


MANY = {"x": [{"": 0}] * (MAX_VALUES // 4)}  # half of the values
LONG = {"x": "y" * (MAX_BYTES // 2)}
PARTS = [
    ("trainer", "config"),
    ("trainer", "command"),
    ("trainer", "args"),
    *(("roles", role, field) for role in ("chief", "evaluator", "ps", "worker") for field in ("template", "resources")),
]


@pytest.mark.parametrize("first", PARTS[:-1])
@pytest.mark.parametrize(("value", "message"), [(MANY, "too many values"), (LONG, "bytes as JSON")])
def test_all_parts_together_have_the_limits_of_one(first: tuple[str, ...], value: Any, message: str) -> None:
    for second in PARTS[PARTS.index(first) + 1 :]:
        spec: dict[str, Any] = {"trainer": {}, "roles": {role: {} for role in ("chief", "evaluator", "ps", "worker")}}
        for path in (first, second):
            *to, last = path
            at = spec
            for name in to:
                at = at[name]
            at[last] = value
        reduced = bounded(spec)
        assert [problem.field for problem in bound_problems(reduced)] == [".".join(("spec", *second))]
        assert message in bound_problems(reduced)[0].message
        assert bounded(reduced) == reduced


def test_a_part_that_is_left_out_does_not_count_for_later_parts() -> None:
    spec = {
        "trainer": {"config": {"x": [0] * 100_000}, "command": ["sh", "-c", "y" * (MAX_BYTES - 100)]},
        "roles": {"worker": {"template": LONG}},
    }
    assert [problem.field for problem in bound_problems(bounded(spec))] == ["spec.trainer.config", "spec.roles.worker.template"]


def test_large_templates_for_all_roles_are_within_bounds() -> None:
    """Each template has three containers of forty variables from a Secret."""
    env = [{"name": f"VARIABLE_{n}", "valueFrom": {"secretKeyRef": {"name": "a-secret", "key": f"key-{n}"}}} for n in range(40)]
    containers = [
        {"name": name, "env": env, "volumeMounts": [{"name": "data", "mountPath": "/data"}]} for name in ("trainer", "proxy", "logs")
    ]
    roles = {role: {"template": {"spec": {"containers": containers}}} for role in ("chief", "evaluator", "ps", "worker")}
    assert bound_problems(bounded({"trainer": {"task": "digits", "config": {"layers": list(range(500))}}, "roles": roles})) == []


@pytest.mark.parametrize("value", [{}, None, 3, "text", [], {"epochs": 3, "layers": [1, 2, {"a": None}], "nan": float("nan")}])
def test_ordinary_values_are_within_bounds(value: Any) -> None:
    assert not out_of_bounds(value)


def test_parts_that_are_out_of_bounds_are_left_out_by_name() -> None:
    deep, good = nested(2_000), {"spec": {"nodeSelector": {"a": "b"}}}
    spec = {
        "strategy": "DDP",
        "trainer": {"task": "digits", "config": deep},
        "roles": {"worker": {"replicas": 2, "template": {"spec": deep}}, "ps": {"template": good}},
    }
    reduced = bounded(spec)
    assert [problem.field for problem in bound_problems(reduced)] == ["spec.trainer.config", "spec.roles.worker.template"]
    assert isinstance(reduced["trainer"]["config"], OutOfBounds)
    assert (reduced["strategy"], reduced["trainer"]["task"], reduced["roles"]["worker"]["replicas"]) == ("DDP", "digits", 2)
    assert reduced["roles"]["ps"] == {"template": good}
    assert spec["trainer"]["config"] is deep, "what was given is not changed"
    assert bounded(reduced) == reduced


@pytest.mark.parametrize("spec", [None, 3, [], {}, {"trainer": 3, "roles": []}, {"trainer": {}, "roles": {"worker": 3}}])
def test_a_spec_of_any_shape_raises_no_error(spec: Any) -> None:
    assert bounded(spec) == spec
    assert bound_problems(spec) == []
