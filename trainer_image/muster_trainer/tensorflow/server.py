"""Processes that only serve another process: workers and parameter servers of ParameterServer, and hosts of a TPU slice except host 0."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from muster_contract.codes import ExitCode
from muster_contract.environment import NAMES
from muster_contract.errors import BadConfiguration
from muster_contract.events import Activity
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.events import Events
from muster_trainer.host.stopping import StopRequest
from muster_trainer.host.waiting import START_SECONDS, listens, wait_for
from muster_trainer.tensorflow.world import cannot_listen, cluster_task, fingerprint

ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
_LOOK_SECONDS = 0.2
_SPARE_SECONDS = 3.0  # the end of the grace period, in which the process itself ends
_running: list[Any] = []
"""References to the servers, because garbage collection would end them."""


def start(cluster: Mapping[str, list[str]], role: str, index: int) -> None:
    """Starts a server at the address of this process. It serves until the process ends. Raises PeerLost if it cannot listen."""
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    options = tf.compat.v1.ConfigProto(gpu_options=tf.compat.v1.GPUOptions(allow_growth=True))
    try:
        _running.append(tf.distribute.Server(cluster, job_name=role, task_index=index, protocol="grpc", config=options))
    except tf.errors.UnknownError as error:
        raise cannot_listen(error, cluster[role][index]) from error


def serve(spec: TrainerSpec, events: Events, stop: StopRequest) -> ExitCode:
    """Serves the chief until a stop is requested. It goes on if the chief is lost, because the chief may restart."""
    task = cluster_task()
    start(task.cluster, task.role, task.index)
    _begin(events, stop)
    while not stop.requested:
        time.sleep(_LOOK_SECONDS)
    return _serve_on(task.cluster["chief"][0], spec, events)


def serve_host(spec: TrainerSpec, events: Events, stop: StopRequest) -> ExitCode:
    """Serves host 0 of a TPU slice until host 0 ends. Only host 0 has the result of the training."""
    addresses = hosts()
    wait_for({"host 0 of the TPU slice": addresses[0]}, START_SECONDS)  # host 0 waits for this server
    start({"worker": addresses}, "worker", int(os.environ.get(NAMES["index"], "0")))
    _begin(events, stop)
    while listens(addresses[0]):
        if stop.requested:
            return _serve_on(addresses[0], spec, events)
        time.sleep(_LOOK_SECONDS)
    return ExitCode.COMPLETED


def hosts() -> list[str]:
    """The addresses of the hosts of a TPU slice. Empty if it has one host. Raises BadConfiguration."""
    addresses = [address.removeprefix("grpc://") for address in os.environ.get(ENDPOINTS, "").split(",") if address]
    for address in addresses:
        if not address.rpartition(":")[2].isdecimal():
            raise BadConfiguration(f"{ENDPOINTS}: {address!r} is not host:port")
    return addresses


def _begin(events: Events, stop: StopRequest) -> None:
    stop.training = True
    events.fingerprint(fingerprint())
    events.phase(Activity.TRAINING)


def _serve_on(coordinator: str, spec: TrainerSpec, events: Events) -> ExitCode:
    """Serves after a stop request, until the coordinator ends or the grace period is almost over. It goes on because usually the whole job
    stops, and the coordinator needs its servers to save."""
    events.phase(Activity.STOPPING)
    limit = time.monotonic() + spec.grace_seconds - _SPARE_SECONDS
    while time.monotonic() < limit and listens(coordinator):
        time.sleep(_LOOK_SECONDS)
    return ExitCode.PREEMPTED
