"""Names in the checkpoint storage."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.checkpoint_layout import Fence, checkpoint_name, is_reserved, parse_checkpoint_name, registration_name, rescue_name

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)


@given(step=st.integers(0, 10**15 - 1), attempt=st.integers(0, 999_999_999), number=st.integers(0, 999_999_999))
def test_the_name_of_a_checkpoint_contains_its_step_and_fence(step: int, attempt: int, number: int) -> None:
    fence = Fence(CREATED, attempt)
    assert parse_checkpoint_name(checkpoint_name(step, fence)) == (step, fence)
    assert parse_checkpoint_name(rescue_name(step, fence, number)) == (step, fence)
    assert is_reserved(checkpoint_name(step, fence))
    assert Fence.parse(registration_name(fence).removesuffix(".json")) == fence


@pytest.mark.parametrize(
    "name",
    [
        "",
        "step-1",
        "step-00000001-",
        "step-x-20261121T111614Z-0000",
        "step-1-20269921T111614Z-0000",
        "step-1-rescue",
        "step-1-20261121T111614Z-0000-rescued",
        "step-1-20261121T111614Z-0000-rescue-",
    ],
)
def test_other_names_are_not_checkpoints(name: str) -> None:
    assert parse_checkpoint_name(name) is None


def test_an_export_may_not_use_the_folders_of_checkpoints() -> None:
    assert [is_reserved(path) for path in ("attempts/model", "history", "step-1")] == [True, True, True]
    assert [is_reserved(path) for path in ("model", "", "model/step-1")] == [False, False, False]


def test_a_later_job_and_a_later_attempt_have_higher_fences() -> None:
    assert Fence(CREATED, 0) < Fence(CREATED, 1) < Fence(CREATED.replace(year=2027), 0)
