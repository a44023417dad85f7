"""Private parts of JAX. Each has a canary in tests/unit/trainer/test_compat_jax.py, which fails when a release changes it."""

from __future__ import annotations

import sys


def has_devices() -> bool:
    """Whether this process has initialised its devices. Does not import JAX, and initialises nothing."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())
