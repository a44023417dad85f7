"""The remedies for a loss that is not finite can be written."""

from __future__ import annotations

import pytest

from muster_contract.config import COMMON_KEYS
from muster_contract.errors import BadConfiguration
from muster_trainer.tasks.config import read_config
from muster_trainer.training.step_reports import nan_loss_remedies


def test_all_remedies_are_named_if_the_engine_accepts_them() -> None:
    remedies = nan_loss_remedies(frozenset())
    assert all(word in remedies for word in ("learningRate", "gradientClipNorm", "bad sample", "nanLoss: Skip", "nanLoss: Continue"))


@pytest.mark.torch
def test_remedies_that_pipedream_refuses_are_not_named() -> None:
    from muster_trainer.pytorch.pipedream import PipeDreamModel, refuse

    remedies = nan_loss_remedies(PipeDreamModel.refuses)
    assert "nanLoss: Continue goes on" in remedies
    for values in ({"gradientClipNorm": 1.0}, {"nanLoss": "Skip"}):
        with pytest.raises(BadConfiguration):
            refuse(read_config(values, COMMON_KEYS, others_allowed=False))
    assert "gradientClipNorm" not in remedies
    assert "Skip" not in remedies
