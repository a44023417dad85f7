"""Checks of the private parts of JAX that `muster_trainer.jax.compat` uses, and of forks after an import of JAX."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

pytestmark = pytest.mark.jax
CHANGED = f"JAX {jax.__version__} has changed {{}}; adapt muster_trainer/jax/compat.py"
PROGRAM = """
import os, threading
import muster_trainer.jax.engine
from muster_trainer.jax import compat, host
assert not compat.has_devices(), "an import"
assert host.unfit() == ""
assert threading.active_count() == 1
child = os.fork()
if child == 0:
    import jax.numpy as jnp
    os._exit(0 if float((jnp.ones(3) @ jnp.ones(3))) == 3.0 else 1)
assert os.waitpid(child, 0)[1] == 0, "a fork"
import jax
jax.devices()
assert compat.has_devices(), "devices"
assert host.unfit() != ""
"""


def test_an_import_of_the_engine_initialises_no_device_and_a_fork_can_compute() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, CHANGED.format("jax._src.xla_bridge.backends_are_initialized") + "\n" + ran.stderr
