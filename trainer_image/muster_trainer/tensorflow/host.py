"""Facts about a process that runs TensorFlow."""

from __future__ import annotations

import sys


def unfit() -> str:
    """The reason why no process may be forked from this one; empty if forks are safe."""
    if "tensorflow" not in sys.modules:
        return ""
    from muster_trainer.tensorflow.compat import has_devices

    return "TensorFlow has initialised its devices" if has_devices() else ""
