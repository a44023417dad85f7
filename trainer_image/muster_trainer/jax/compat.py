"""The private parts of JAX that Muster uses.

tests/unit/trainer/test_compat_jax.py has a test for each part, which fails if a release of JAX changes it.
"""

from __future__ import annotations

import sys


def has_devices() -> bool:
    """Whether this process has initialised its devices. Does not import JAX, and initialises nothing."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())
