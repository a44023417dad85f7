"""What the preparation of a process leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a warm parent")]
TRAINED = """
import json, os, sys
import keras
import numpy as np
import tensorflow as tf
from muster_contract.trainer_spec import BatchSpec, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.tasks.module import load_task
from muster_trainer.tensorflow import host, synchronous
from tests.support.descriptors import runtime

spec = TrainerSpec(strategy=runtime(sys.argv[1]), batch=BatchSpec(16), task="digits", config={"model": "mlp", "hidden": [32]})
if "prepared" in sys.argv:
    os.environ["TF_CONFIG"] = "of another world"
    synchronous.prepare(spec)
    assert host.unfit() == "", "the process has devices after its preparation"
    assert "TF_CONFIG" not in os.environ
task = load_task(spec)
engine = getattr(synchronous, sys.argv[1])(task, spec)
order = Order(task.config.seed, len(task.train), 16)
engine.expect(order, range(3))
losses = [
    engine.step(np.asarray(order.batch_indices(step)), step=step, stop=False, save=False, busy=False).loss.hex() for step in range(3)
]
names = [layer.name for layer in engine.model.layers]
print(json.dumps({"losses": losses, "names": names, "threads": engine.fingerprint()["threads"], "devices": engine.devices}))
"""


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored", "MultiWorkerMirrored"])
def test_a_prepared_process_trains_as_any_other(strategy: str) -> None:
    assert trained(strategy, "prepared") == trained(strategy)


def trained(*arguments: str) -> dict[str, object]:
    """The losses of three steps, bit for bit, and the names of the layers, which a checkpoint may contain."""
    finished = subprocess.run([sys.executable, "-c", TRAINED, *arguments], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    result: dict[str, object] = json.loads(finished.stdout.splitlines()[-1])
    return result
