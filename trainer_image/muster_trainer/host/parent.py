"""A process that does not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with(parent: int) -> None:
    """Has the kernel end this process when `parent` ends (Linux only), and ends it now where that has happened already."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
