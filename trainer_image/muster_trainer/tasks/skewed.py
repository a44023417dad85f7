"""The bundled task `skewed`: the digits again, by a deep chain of dense layers of which a few do nearly all the work.

With the default widths the first three of twelve layers have nine tenths of the multiplications: a pipeline that gives each stage
the same number of layers waits for its first. The models are those of `digits` with these widths.
"""

from __future__ import annotations

from muster_contract.config import COMMON_KEYS, Key, choice, number, widths
from muster_trainer.tasks.digits import dataset

__all__ = ["IDENTITY_KEYS", "KEYS", "dataset"]

KEYS: tuple[Key, ...] = (
    *COMMON_KEYS,
    choice("optimizer", "Adam", "SGD", "AdamW"),  # a chain so deep hardly moves by plain SGD
    number("learningRate", 0.001, positive=True),
    choice("model", "mlp"),
    widths("hidden", [512, 512, 256, *[64] * 8]),
)
IDENTITY_KEYS = ("hidden",)
