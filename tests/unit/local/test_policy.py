"""The back-off of `muster run`."""

from __future__ import annotations

import pytest

from muster.api.status import FailureClass
from muster.local.runner import POLICY


@pytest.mark.parametrize("failure_class", FailureClass)
def test_the_delay_grows_with_attempts_without_progress_for_every_class(failure_class: FailureClass) -> None:
    delays = [POLICY.delays[failure_class].after(failures) for failures in range(1, 8)]
    assert delays == sorted(delays)
    assert delays[0] <= 1, "one failure costs little"
    assert delays[-1] >= 5
