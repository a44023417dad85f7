"""Joins the TensorFlow cluster of TF_CONFIG, and distinguishes a lost peer from a failure of the training code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import tensorflow as tf

from muster_contract.errors import BadConfiguration, PeerLost
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.waiting import START_SECONDS, wait_for
from muster_trainer.tensorflow import compat

HEARTBEAT_TIMEOUT_MS = 10_000
REGISTER_TIMEOUT_MS = 15 * 60 * 1000
COMMUNICATION = {
    "Auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "NCCL": tf.distribute.experimental.CommunicationImplementation.NCCL,
    "Ring": tf.distribute.experimental.CommunicationImplementation.RING,
}
_PEER_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)


@dataclass(frozen=True)
class ClusterTask:
    """This process in the cluster of TF_CONFIG: the addresses of each role, its own role, and its index in that role."""

    cluster: Mapping[str, list[str]]
    role: str
    index: int

    @property
    def address(self) -> str:
        return self.cluster[self.role][self.index]


def cluster_task() -> ClusterTask:
    """Reads TF_CONFIG. Raises BadConfiguration."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        task = ClusterTask(config["cluster"], config["task"]["type"], int(config["task"]["index"]))
        task.address.rpartition(":")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadConfiguration(f"TF_CONFIG names no cluster and no task of it ({error!r}): {text[:200]}") from None
    return task


def worker_index() -> tuple[int, int]:
    """This worker's index and the number of workers in TF_CONFIG; (0, 1) without TF_CONFIG. Raises BadConfiguration."""
    if not os.environ.get("TF_CONFIG"):
        return 0, 1
    task = cluster_task()
    if "worker" not in task.cluster:
        raise BadConfiguration(f"TF_CONFIG names no workers, but {', '.join(task.cluster)}")
    return task.index, len(task.cluster["worker"])


def cannot_listen(error: tf.errors.OpError, address: str) -> PeerLost:
    """The error of a server that cannot start. It is PeerLost, so that the job retries, because the port may be free later."""
    return PeerLost(f"cannot listen at {address}: {one_line(error)[:200]}; is the port in use by another program?")


def fingerprint() -> Mapping[str, Any]:
    """The fields of the `fingerprint` event: the software and devices of this process."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")[:1]
    return {
        "framework": "tensorflow",
        "version": tf.__version__,
        "libraries": {"keras": version("keras"), "numpy": version("numpy")},
        "devices": [device.device_type.lower() for device in devices],
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
    }


class Membership(NamedTuple):
    """This process's rank, the size of its world, and the strategy that spans it."""

    rank: int
    world: int
    strategy: tf.distribute.Strategy


def join(spec: TrainerSpec) -> Membership:
    """Joins the world of MultiWorkerMirrored. Raises PeerLost if a worker does not start in time, or the port is in use."""
    communication = spec.communication
    if communication not in COMMUNICATION:
        choices = ", ".join(COMMUNICATION)
        raise BadConfiguration(f"spec.communication: {communication!r} is none of {choices} for MultiWorkerMirrored")
    if communication == "NCCL" and not tf.config.list_physical_devices("GPU"):
        raise BadConfiguration("spec.communication: NCCL needs GPUs, and there are none; write Ring or Auto")
    index, workers = worker_index()
    if workers > 1:
        compat.configure_coordination(
            leader="/job:worker/replica:0/task:0", heartbeat_milliseconds=HEARTBEAT_TIMEOUT_MS, register_milliseconds=REGISTER_TIMEOUT_MS
        )
    options = tf.distribute.experimental.CommunicationOptions(implementation=COMMUNICATION[communication])
    if index:
        # Waits until the first worker listens, because gRPC retries a refused connection only after a second.
        wait_for({"worker 0": cluster_task().cluster["worker"][0]}, START_SECONDS)
    with peers(index):
        try:
            return Membership(index, workers, tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))
        except tf.errors.UnknownError as error:
            raise cannot_listen(error, cluster_task().cluster["worker"][index]) from error


@contextmanager
def peers(rank: int) -> Iterator[None]:
    """Raises PeerLost if a collective in the block fails, or the cluster."""
    try:
        yield
    except _PEER_LOST as error:
        raise PeerLost(f"rank {rank}: {one_line(error)}") from error
    except tf.errors.InternalError as error:
        if "ollective" in str(error.message) or "oordination" in str(error.message):
            raise PeerLost(f"rank {rank}: {one_line(error)}") from error
        raise


def one_line(error: BaseException) -> str:
    """The message, without the stack before it and the graph nodes after it that TensorFlow adds."""
    lines = str(getattr(error, "message", error)).splitlines()
    frames = [number for number, line in enumerate(lines) if line.lstrip().startswith('File "')]
    message = [line for line in lines[frames[-1] + 1 if frames else 0 :] if not line.lstrip().startswith("[[")]
    return " ".join(" ".join(message).split())[:500]
