"""A rank that works longer than the others makes all steps long. It is distinguished from the ranks that wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_worlds import trainer, world
from tests.support.local_jobs import LocalJob, job
from tests.support.waiting import wait_until

SECONDS = 240.0
SLOW = 0.06
MODEL = '''
"""Rank 1 takes its time in the loss, as long as there is a file `slow`."""
import os, time
from pathlib import Path

from muster_trainer.tasks.digits import dataset

SLOW = Path(os.environ.get("SLOW_FILE", "slow"))

def dawdle():
    if os.environ.get("RANK", os.environ["MUSTER_INDEX"]) == "1" and SLOW.exists():
        time.sleep(0.06)
'''
TORCH = """
from torch import nn

def build_model(config):
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def loss(outputs, batch):
    dawdle()
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")
"""
TENSORFLOW = """
import keras
import tensorflow as tf

def build_model(config):
    return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])

def loss(outputs, batch):
    late = tf.py_function(lambda one: dawdle() or one, [outputs], tf.float32)
    late.set_shape(outputs.shape)
    return keras.losses.sparse_categorical_crossentropy(batch[1], late, from_logits=True)
"""
LONG = {"epochs": 5000, "seed": 3, "stepDelaySeconds": 0.01}


@pytest.mark.tensorflow
def test_workers_of_tensorflow_tell_how_long_they_work_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL + TENSORFLOW)
    (tmp_path / "slow").touch()
    document = trainer(None, config=LONG, module="model")
    with world("MultiWorkerMirrored", document, PYTHONPATH=str(tmp_path), SLOW_FILE=str(tmp_path / "slow")) as running:

        def paces() -> list[dict[str, Any]] | None:
            """The newest pace of each rank, once rank 0 works less. A busy machine may slow down a few of its steps too."""
            newest = {event["rank"]: event for event in running.events("pace") if "ownSeconds" in event}
            if newest.keys() == {0, 1} and newest[0]["ownSeconds"] < newest[1]["ownSeconds"] - SLOW / 2:
                return [newest[0], newest[1]]
            return None

        fast, slow = running.wait_for(paces, "rank 0 works less than rank 1")
    assert slow["seconds"] > SLOW
    assert fast["seconds"] > SLOW, "it waits for the other in each step"
    assert slow["ownSeconds"] > SLOW


@pytest.mark.torch
def test_a_slow_rank_is_named_in_the_status_while_it_is_slow(tmp_path: Path) -> None:
    local_job = LocalJob(tmp_path)
    (tmp_path / "model.py").write_text(MODEL + TORCH)
    (tmp_path / "slow").touch()
    name = local_job.write(job(trainer={"module": "model", "config": LONG}, batch={"globalSize": 64}))

    def is_named() -> bool:
        straggling = local_job.condition("Straggling")
        return straggling.get("status") == "True" and straggling["message"].startswith("rank 1 (worker-1) takes 0.")

    with local_job.running(name):
        wait_until(is_named, "the straggler", SECONDS)
        (tmp_path / "slow").unlink()
        wait_until(lambda: local_job.condition("Straggling").get("status") == "False", "no straggler", SECONDS)
