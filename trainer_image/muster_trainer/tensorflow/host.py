"""What Muster asks TensorFlow about a process."""

from __future__ import annotations

import sys


def unfit() -> str:
    """Why no process may be forked from this one; empty if one may."""
    if "tensorflow" not in sys.modules:
        return ""
    from muster_trainer.tensorflow.compat import has_devices

    return "TensorFlow has initialised its devices" if has_devices() else ""
