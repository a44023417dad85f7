"""When the user gets a notice that the training waits for its samples."""

from __future__ import annotations

import pytest

from muster_trainer.data.stall import LONG, Stall


def test_a_long_wait_is_reported_once_with_a_remedy() -> None:
    stall = Stall()
    messages = [stall.add(seconds=2.0, waited=1.0) for _ in range(40)]
    (message,) = [one for one in messages if one]
    assert messages.index(message) == LONG - 1
    assert "waits for its samples 50% of the time" in message
    assert "spec.trainer.input.workers" in message
    assert stall.share == pytest.approx(0.5)


def test_a_short_wait_or_a_small_share_is_not_reported() -> None:
    short, small = Stall(), Stall()
    assert not any(short.add(seconds=0.01, waited=0.01) for _ in range(500))
    assert not any(small.add(seconds=10.0, waited=1.0) for _ in range(500))
    assert Stall().share == 0.0
