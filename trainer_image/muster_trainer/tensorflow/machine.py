"""The devices of this machine, and the strategies of tf.distribute that need no other: OneDevice, Mirrored, CentralStorage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.tensorflow.world import Membership

REDUCTIONS: Mapping[str, Callable[[], Any]] = {
    "Auto": lambda: None,
    "NCCL": tf.distribute.NcclAllReduce,
    "Hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "OneDevice": tf.distribute.ReductionToOneDevice,
}
"""What MirroredStrategy adds gradients up by, for each `spec.communication`."""
ENDING_SECONDS = 0.2
_JOIN = tf.train.Coordinator.join


def prepare(spec: TrainerSpec, *, deterministic: bool) -> None:
    """Before anything else touches TensorFlow: logical devices, deterministic kernels, and a fixed number of threads, since
    that decides the order in which floats are added."""
    tf.train.Coordinator.join = join_threads
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    logical = spec.options.get("logicalDevices")
    if logical is not None:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * int(logical)
        )
    if deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def join_threads(coordinator: tf.train.Coordinator, threads: Iterable[threading.Thread] | None = None, *more: Any, **options: Any) -> None:
    """tf.distribute traces what replicas run in threads, and TensorFlow looks once a second whether they have ended. From Python 3.13 on a
    thread that is ending still is alive at the first look: each function cost a second, four of them at every start."""
    threads = None if threads is None else list(threads)
    for thread in threads or ():
        thread.join(ENDING_SECONDS)
    _JOIN(coordinator, threads, *more, **options)


def one_device(spec: TrainerSpec) -> Membership:
    return Membership(0, 1, tf.distribute.OneDeviceStrategy(f"/device:{_devices(spec)[0]}"))


def mirrored(spec: TrainerSpec) -> Membership:
    if spec.communication not in REDUCTIONS:
        raise BadConfiguration(f"spec.communication: {spec.communication!r} is none of {', '.join(REDUCTIONS)} for Mirrored")
    devices = _devices(spec)
    if spec.communication == "NCCL" and not devices[0].startswith("GPU"):
        raise BadConfiguration("spec.communication: NCCL needs GPUs, and there are none; write Auto, Hierarchical or OneDevice")
    strategy = tf.distribute.MirroredStrategy([f"/device:{name}" for name in devices], cross_device_ops=REDUCTIONS[spec.communication]())
    return Membership(0, 1, strategy)


def central_storage(spec: TrainerSpec) -> Membership:
    devices = [f"/device:{name}" for name in _devices(spec)]
    return Membership(0, 1, tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/device:CPU:0"))


def _devices(spec: TrainerSpec) -> list[str]:
    """Those that the job names, else all accelerators, else all CPUs. Raises BadConfiguration where one is not there."""
    there = [":".join(device.name.split(":")[-2:]) for device in tf.config.list_logical_devices()]
    named = spec.options.get("devices")
    if named is None:
        return [name for name in there if name.startswith("GPU")] or [name for name in there if name.startswith("CPU")]
    for name in named:
        if name not in there:
            raise BadConfiguration(f"spec.options.devices: there is no device {name} here; there are {', '.join(there)}")
    return list(named)
