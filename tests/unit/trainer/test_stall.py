"""When a user is told that the training waits for its samples."""

from __future__ import annotations

import pytest

from muster_trainer.data.stall import LONG, Stall


def test_a_long_wait_is_told_once_and_with_a_remedy() -> None:
    stall = Stall()
    said = [stall.add(seconds=2.0, waited=1.0) for _ in range(40)]
    (told,) = [one for one in said if one]
    assert said.index(told) == LONG - 1
    assert "waits for its samples 50% of the time" in told
    assert "spec.trainer.input.workers" in told
    assert stall.share == pytest.approx(0.5)


def test_a_short_wait_or_a_small_share_is_not_told() -> None:
    short, small = Stall(), Stall()
    assert not any(short.add(seconds=0.01, waited=0.01) for _ in range(500))
    assert not any(small.add(seconds=10.0, waited=1.0) for _ in range(500))
    assert Stall().share == 0.0
