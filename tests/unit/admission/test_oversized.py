"""A job whose spec is far out of bounds is cut before it is parsed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.admission.bounds import MAX_BYTES, bound_problems, bounded
from muster.admission.oversized import MOST_BRACKETS, without_oversized_spec
from tests.support.oversized import change_of


@pytest.mark.parametrize("status", [True, False])
def test_a_change_with_an_oversized_spec_is_cut_before_it_is_parsed(status: bool) -> None:
    template = {"a": [[]] * (MOST_BRACKETS + 1), "b": {"c": 1, "status": {"attempt": 9}}}
    spec = {"inputs": [], "managedBy": "example.com/theirs", "roles": {"worker": {"template": template}}, "strategy": "DDP"}
    cut = without_oversized_spec(change_of(spec, status=status))
    assert len(cut) < 20_000
    change = json.loads(cut)
    obj = change["object"]
    assert change["type"] == "MODIFIED"
    assert (obj["metadata"]["name"], obj["metadata"]["resourceVersion"], obj["metadata"]["uid"]) == ("large", "7", "uid-large")
    assert obj.get("status") == ({"attempt": 3, "phase": "Running"} if status else None)
    assert obj["spec"]["managedBy"] == "example.com/theirs"
    [problem] = bound_problems(bounded(obj["spec"]))
    assert problem.field == "spec.roles.worker.template"
    assert "too many values" in problem.message


def test_a_cut_change_names_the_part_that_is_too_large() -> None:
    spec = {"roles": {"worker": {"template": {"spec": {}}}}, "strategy": "DDP", "trainer": {"config": [[]] * (MOST_BRACKETS + 1)}}
    [problem] = bound_problems(bounded(json.loads(without_oversized_spec(change_of(spec, status=True)))["object"]["spec"]))
    assert problem.field == "spec.trainer.config"


def test_a_change_of_the_largest_valid_spec_is_not_cut() -> None:
    change = change_of({"trainer": {"config": {"text": "{[" * (MAX_BYTES // 2)}}}, status=True)
    assert without_oversized_spec(change) is change


@given(st.text(st.sampled_from('[]{}",:a\\ '), max_size=200))
def test_a_text_of_another_form_is_returned_as_it_is(text: str) -> None:
    strange = (text + "[" * (MOST_BRACKETS + 1)).encode()
    assert without_oversized_spec(strange) is strange


def test_cutting_a_change_takes_a_small_part_of_the_time_of_parsing_it() -> None:
    """A tenant who changes a label of an oversized job again and again must not stop the event loop."""
    whole = change_of({"strategy": "DDP", "trainer": {"config": [[]] * 120_000}}, status=True)

    def seconds(read: Callable[[bytes], object]) -> float:
        begun = time.process_time()
        read(whole)
        return time.process_time() - begun

    cut = min(seconds(lambda text: orjson.loads(without_oversized_spec(text))) for _ in range(2))
    assert cut * 5 < min(seconds(orjson.loads) for _ in range(2))
