"""Processes that another one computes with: workers and parameter servers of ParameterServer, and further hosts of a TPU slice."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from muster_trainer.contract import BadConfiguration, ExitCode, TrainerSpec
from muster_trainer.events import Events
from muster_trainer.stopping import StopRequest
from muster_trainer.tensorflow.world import cannot_listen, fingerprint, place
from muster_trainer.waiting import START_SECONDS, listens, wait_for

ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
_LOOK_SECONDS = 0.2
_SPARE_SECONDS = 3.0  # of the grace period, for ending
_running: list[Any] = []
"""Servers end when they are collected, and should end with the process."""


def start(cluster: Mapping[str, list[str]], role: str, index: int) -> None:
    """Listens at this process's address for the rest of its life. Raises PeerLost where it cannot."""
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    options = tf.compat.v1.ConfigProto(gpu_options=tf.compat.v1.GPUOptions(allow_growth=True))
    try:
        _running.append(tf.distribute.Server(cluster, job_name=role, task_index=index, protocol="grpc", config=options))
    except tf.errors.UnknownError as error:
        raise cannot_listen(error, cluster[role][index]) from error


def serve(spec: TrainerSpec, events: Events, stop: StopRequest) -> ExitCode:
    """Serves the chief until asked to stop. A chief that is gone may come back."""
    cluster, role, index = place()
    start(cluster, role, index)
    _begin(events, stop)
    while not stop.requested:
        time.sleep(_LOOK_SECONDS)
    return _serve_on(cluster["chief"][0], spec, events)


def serve_host(spec: TrainerSpec, events: Events, stop: StopRequest) -> ExitCode:
    """Serves host 0 of a TPU slice until it is gone: it alone knows how the training ended, and its end says so."""
    addresses = hosts()
    wait_for({"host 0 of the TPU slice": addresses[0]}, START_SECONDS)  # it does nothing before this one listens, and may then end at once
    start({"worker": addresses}, "worker", int(os.environ.get("MUSTER_INDEX", "0")))
    _begin(events, stop)
    while listens(addresses[0]):
        if stop.requested:
            return _serve_on(addresses[0], spec, events)
        time.sleep(_LOOK_SECONDS)
    return ExitCode.COMPLETED


def hosts() -> list[str]:
    """The addresses of a TPU slice's hosts; none where it has one host. Raises BadConfiguration."""
    addresses = [address.removeprefix("grpc://") for address in os.environ.get(ENDPOINTS, "").split(",") if address]
    for address in addresses:
        if not address.rpartition(":")[2].isdecimal():
            raise BadConfiguration(f"{ENDPOINTS}: {address!r} is no host:port")
    return addresses


def _begin(events: Events, stop: StopRequest) -> None:
    stop.training = True
    events.fingerprint(fingerprint())
    events.emit("phase", phase="Training")


def _serve_on(coordinator: str, spec: TrainerSpec, events: Events) -> ExitCode:
    """What is asked to stop is mostly the whole job, and its coordinator cannot save alone: serves until that is gone, or the
    grace period nearly over."""
    events.emit("phase", phase="Stopping")
    limit = time.monotonic() + spec.grace_seconds - _SPARE_SECONDS
    while time.monotonic() < limit and listens(coordinator):
        time.sleep(_LOOK_SECONDS)
    return ExitCode.PREEMPTED
