"""The priority of a thread that works beside the training."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICENESS = 10


def yield_to_steps() -> None:
    """Lowers the priority of this thread, so that it does not slow down steps. Only Linux has a niceness for each thread."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
