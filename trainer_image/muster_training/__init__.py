"""The library for training programs of your own: progress, stops, and verified checkpoints (docs/own-loop.md).

    import muster_training as muster

It imports no framework. The same program also runs outside Muster. It then reports nothing and saves nothing.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (images of users may have an older one)
    raise ImportError("muster_training needs Python 3.11 or newer, and this is {}.{}".format(*sys.version_info[:2]))

from muster_contract.errors import BadConfiguration, CheckpointDamaged, PeerLost, StorageUnavailable, UserError
from muster_training.callbacks import keras_callback, lightning_callback, transformers_callback
from muster_training.data import data_loader
from muster_training.place import Environment
from muster_training.registration import State, register
from muster_training.saves import Checkpoint
from muster_training.session import checkpoint, environment, latest, notice, report, should_save, should_stop

__all__ = [
    "BadConfiguration",
    "Checkpoint",
    "CheckpointDamaged",
    "Environment",
    "PeerLost",
    "State",
    "StorageUnavailable",
    "UserError",
    "checkpoint",
    "data_loader",
    "environment",
    "keras_callback",
    "latest",
    "lightning_callback",
    "notice",
    "register",
    "report",
    "should_save",
    "should_stop",
    "transformers_callback",
]
