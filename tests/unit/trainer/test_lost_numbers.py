"""What is advised where a loss is no finite number can be written."""

from __future__ import annotations

import pytest

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.loop import against_lost_numbers
from muster_trainer.tasks.config import COMMON_KEYS, read_config


def test_all_that_helps_is_advised_where_all_is_taken() -> None:
    said = against_lost_numbers(frozenset())
    assert all(word in said for word in ("learningRate", "gradientClipNorm", "bad sample", "nanLoss: Skip", "nanLoss: Continue"))


@pytest.mark.torch
def test_pipedream_is_not_advised_what_it_refuses() -> None:
    pytest.importorskip("torch")
    from muster_trainer.pytorch.pipedream import PipeDream, refuse

    spec = TrainerSpec.from_json('{"task": "digits", "batch": {"globalSize": 4}}')
    said = against_lost_numbers(PipeDream.refuses)
    assert "nanLoss: Continue goes on" in said
    for values in ({"gradientClipNorm": 1.0}, {"nanLoss": "Skip"}):
        with pytest.raises(BadConfiguration):
            refuse(spec, read_config(values, COMMON_KEYS, others_allowed=False), ways=1)
    assert "gradientClipNorm" not in said
    assert "Skip" not in said
