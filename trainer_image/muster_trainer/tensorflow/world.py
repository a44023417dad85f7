"""Joining the TensorFlow cluster of TF_CONFIG, and telling a lost peer from a failure of the training code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context

from muster_trainer.contract import BadConfiguration, PeerLost, TrainerSpec
from muster_trainer.waiting import START_SECONDS, wait_for

HEARTBEAT_TIMEOUT_MS = 10_000
REGISTER_TIMEOUT_MS = 15 * 60 * 1000
COMMUNICATION = {
    "Auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "NCCL": tf.distribute.experimental.CommunicationImplementation.NCCL,
    "Ring": tf.distribute.experimental.CommunicationImplementation.RING,
}
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)


class Place(NamedTuple):
    """This process's place in the cluster of TF_CONFIG: {role: addresses}, its own role and its index there."""

    cluster: dict[str, list[str]]
    role: str
    index: int


def place() -> Place:
    """Where TF_CONFIG puts this process. Raises BadConfiguration."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        found = Place(config["cluster"], config["task"]["type"], int(config["task"]["index"]))
        found.cluster[found.role][found.index].rpartition(":")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadConfiguration(f"TF_CONFIG names no cluster and no task of it ({error!r}): {text[:200]}") from None
    return found


def task_index() -> tuple[int, int]:
    """(index, number) of the workers in TF_CONFIG; a worker alone needs none. Raises BadConfiguration."""
    if not os.environ.get("TF_CONFIG"):
        return 0, 1
    found = place()
    if "worker" not in found.cluster:
        raise BadConfiguration(f"TF_CONFIG names no workers, but {', '.join(found.cluster)}")
    return found.index, len(found.cluster["worker"])


def cannot_listen(error: tf.errors.OpError, address: str) -> PeerLost:
    """What an error of starting a server means: another attempt gets another port, or the old one is free by then."""
    return PeerLost(f"cannot listen at {address}: {one_line(error)[:200]}; is the port in use by another program?")


def fingerprint() -> Mapping[str, Any]:
    """What this process computes with, as the contract's event tells it."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")[:1]
    return {
        "framework": "tensorflow",
        "version": tf.__version__,
        "libraries": {"keras": version("keras"), "numpy": version("numpy")},
        "devices": [device.device_type.lower() for device in devices],
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
    }


class Membership(NamedTuple):
    """This process's place among the workers, and the strategy that spans them."""

    rank: int
    world: int
    strategy: tf.distribute.Strategy


def join(spec: TrainerSpec) -> Membership:
    """MultiWorkerMirrored: waits for all workers. Raises PeerLost where they do not come or the port is taken."""
    communication = spec.communication
    if communication not in COMMUNICATION:
        known = ", ".join(COMMUNICATION)
        raise BadConfiguration(f"spec.communication: {communication!r} is none of {known} for MultiWorkerMirrored")
    if communication == "NCCL" and not tf.config.list_physical_devices("GPU"):
        raise BadConfiguration("spec.communication: NCCL needs GPUs, and there are none; write Ring or Auto")
    refuse_logical_devices(spec)
    index, workers = task_index()
    if workers > 1:
        # There is no public way to set these; the default takes minutes to notice a silent worker that never came up.
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_MS,
            cluster_register_timeout_in_ms=REGISTER_TIMEOUT_MS,
        )
    options = tf.distribute.experimental.CommunicationOptions(implementation=COMMUNICATION[communication])
    if index:
        # gRPC tries again after a second, for TensorFlow tells it so, where it was refused: the first worker should be there.
        wait_for({"worker 0": place().cluster["worker"][0]}, START_SECONDS)
    with peers(index):
        try:
            return Membership(index, workers, tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))
        except tf.errors.UnknownError as error:
            raise cannot_listen(error, place().cluster["worker"][index]) from error


def refuse_logical_devices(spec: TrainerSpec) -> None:
    """Raises BadConfiguration: the strategies of several machines list no CPU but the first."""
    if spec.options.get("logicalDevices"):
        raise BadConfiguration(
            "spec.options.logicalDevices: tf.distribute takes the GPUs of a worker, or its CPU as one; leave it out, or use Mirrored"
        )


@contextmanager
def peers(rank: int) -> Iterator[None]:
    """Turns the failure of a collective, or of the cluster, into PeerLost."""
    try:
        yield
    except _LOST as error:
        raise PeerLost(f"rank {rank}: {one_line(error)}") from error
    except tf.errors.InternalError as error:
        if "ollective" in str(error.message) or "oordination" in str(error.message):
            raise PeerLost(f"rank {rank}: {one_line(error)}") from error
        raise


def one_line(error: BaseException) -> str:
    """The message without the stack of the graph that TensorFlow puts before it, and the nodes it puts behind."""
    lines = str(getattr(error, "message", error)).splitlines()
    frames = [number for number, line in enumerate(lines) if line.lstrip().startswith('File "')]
    told = [line for line in lines[frames[-1] + 1 if frames else 0 :] if not line.lstrip().startswith("[[")]
    return " ".join(" ".join(told).split())[:500]
