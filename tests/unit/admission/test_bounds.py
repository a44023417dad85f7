"""The bounds of the free parts of a spec."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.bounds import MAX_BYTES, MAX_DEPTH, LeftOut, bounded, left_out, out_of_bounds


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = [] if lists else {}
    for _ in range(levels - 1):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [False, True])
def test_a_value_may_have_so_many_levels_and_no_more(*, lists: bool) -> None:
    assert out_of_bounds(nested(MAX_DEPTH, lists=lists)) is None
    for levels in (MAX_DEPTH + 1, 1_000, 50_000):
        assert "levels deep" in (out_of_bounds(nested(levels, lists=lists)) or "")


@pytest.mark.parametrize("fill", ["y", "é", "\ud800", "\x00"])
def test_a_value_may_have_so_many_bytes_and_no_more(fill: str) -> None:
    bytes_each = {"y": 1, "é": 2, "\ud800": 3, "\x00": 6}[fill]  # as JSON
    assert out_of_bounds({"x": fill * ((MAX_BYTES - 8) // bytes_each)}) is None
    assert "bytes as JSON" in (out_of_bounds({"x": fill * (MAX_BYTES // bytes_each)}) or "")


@pytest.mark.parametrize("value", [{"x": [[]] * 400_000}, [[]] * 30_000, {"x": list(range(100_000))}])
def test_many_small_values_are_too_large_as_well(value: Any) -> None:
    assert "bytes as JSON" in (out_of_bounds(value) or "")


@pytest.mark.parametrize("value", [{}, None, 3, "text", [], {"epochs": 3, "layers": [1, 2, {"a": None}], "nan": float("nan")}])
def test_ordinary_values_are_within_bounds(value: Any) -> None:
    assert out_of_bounds(value) is None


def test_what_is_out_of_bounds_is_left_out_by_name_and_the_rest_stays() -> None:
    deep, good = nested(2_000), {"spec": {"nodeSelector": {"a": "b"}}}
    spec = {
        "strategy": "DDP",
        "trainer": {"task": "digits", "config": deep},
        "roles": {"worker": {"replicas": 2, "template": {"spec": deep}}, "ps": {"template": good}},
    }
    reduced = bounded(spec)
    assert [problem.field for problem in left_out(reduced)] == ["spec.trainer.config", "spec.roles.worker.template"]
    assert isinstance(reduced["trainer"]["config"], LeftOut)
    assert (reduced["strategy"], reduced["trainer"]["task"], reduced["roles"]["worker"]["replicas"]) == ("DDP", "digits", 2)
    assert reduced["roles"]["ps"] == {"template": good}
    assert spec["trainer"]["config"] is deep, "what was given is not changed"
    assert bounded(reduced) == reduced


@pytest.mark.parametrize("spec", [None, 3, [], {}, {"trainer": 3, "roles": []}, {"trainer": {}, "roles": {"worker": 3}}])
def test_a_spec_of_any_shape_passes(spec: Any) -> None:
    assert bounded(spec) == spec
    assert left_out(spec) == []
