"""Gives the tasks of a barrier stage their ranks, for TensorFlow and for `muster_training`."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from muster_trainer.host.ranks import PORTS_APART


def tf_config(context: Any) -> dict[str, Any]:
    """Sets TF_CONFIG for this task of a barrier stage, and returns it as a mapping. Call it in every task, before TensorFlow is imported.

    `context` is a `pyspark.BarrierTaskContext`. Each task is one worker, and its partition is its rank, which `muster_training` has too.
    The call waits for all tasks of the stage.
    """
    rank = context.partitionId()
    host = context.getTaskInfos()[rank].address.rpartition(":")[0] or context.getTaskInfos()[rank].address
    workers = [str(each) for each in context.allGather(f"{host}:{_free_port()}")]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    address, _, port = workers[0].rpartition(":")
    os.environ.update(TF_CONFIG=json.dumps(config), RANK=str(rank), WORLD_SIZE=str(len(workers)), MASTER_ADDR=address, MASTER_PORT=port)
    return config


def _free_port() -> int:
    """A port that is free, with room above it for the port at which ranks meet."""
    while True:
        with socket.socket() as free:
            free.bind(("", 0))
            port = int(free.getsockname()[1])
        if port + PORTS_APART < 1 << 16:
            return port
