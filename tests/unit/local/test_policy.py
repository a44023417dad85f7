"""How `muster run` holds back attempts that fail again and again."""

from __future__ import annotations

import pytest

from muster.api.status import FailureClass
from muster.local.runner import POLICY


@pytest.mark.parametrize("failure_class", FailureClass)
def test_attempts_without_progress_wait_longer_each_time_whatever_the_class(failure_class: FailureClass) -> None:
    delays = [POLICY.delays[failure_class].after(failures) for failures in range(1, 8)]
    assert delays == sorted(delays)
    assert delays[0] <= 1, "one failure costs little"
    assert delays[-1] >= 5
