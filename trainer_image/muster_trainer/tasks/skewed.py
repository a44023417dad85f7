"""The bundled task `skewed`: the data of `digits`, with many dense layers, of which a few need most of the time.

With the default widths, the first three of twelve layers have nine tenths of the multiplications. If a pipeline gives each stage the
same number of layers, the other stages wait for the first. The models are those of `digits` with these widths, so no framework has a
module for this task.
"""

from __future__ import annotations

from muster_contract.tasks import TASKS
from muster_trainer.tasks.digits import dataset

__all__ = ["IDENTITY_KEYS", "KEYS", "MODELS", "dataset"]

MODELS = "digits"
KEYS = TASKS["skewed"].keys
IDENTITY_KEYS = ("hidden",)
