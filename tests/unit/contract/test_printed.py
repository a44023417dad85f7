"""Lines of a log are read as the trainer has printed them."""

from __future__ import annotations

import math

import pytest

from muster_contract.events import CollectiveMeasurement
from muster_contract.printed import epoch_line, measurement_line, read_epoch_line, read_measurement_line


@pytest.mark.parametrize("before", ["", "[rank 3] "])
@pytest.mark.parametrize("loss", [1.5, 0.0, 123456.25, 1e300, math.inf, -math.inf])
def test_the_line_of_an_epoch_has_its_step_and_loss(before: str, loss: float) -> None:
    assert read_epoch_line(f"{before}{epoch_line(2, 3, step=46, loss=loss)}, 2% of the time waiting for samples") == (46, loss)


def test_the_line_of_an_epoch_may_have_a_loss_that_is_no_number() -> None:
    read = read_epoch_line(epoch_line(2, 3, step=46, loss=math.nan))
    assert read is not None
    assert math.isnan(read[1])


def test_the_line_of_a_measurement_has_the_measurement() -> None:
    measurement = CollectiveMeasurement(operation="AllReduce", own=True, bytes=1024, world=2, median=0.25, count=3)
    assert read_measurement_line(f"[rank 0] {measurement_line(measurement)}") == measurement


@pytest.mark.parametrize("line", ["", "step 7, loss 3", "epoch 3 of 3: step 69, loss e.e.e", 'measurement {"event": ', "measurement", "{}"])
def test_other_lines_have_neither(line: str) -> None:
    assert (read_epoch_line(line), read_measurement_line(line)) == (None, None)
