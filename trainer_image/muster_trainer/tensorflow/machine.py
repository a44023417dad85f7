"""The devices of this machine, and the strategies of tf.distribute for one machine: OneDevice, Mirrored, CentralStorage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.tensorflow import compat
from muster_trainer.tensorflow.world import Membership

REDUCTIONS: Mapping[str, Callable[[], Any]] = {
    "Auto": lambda: None,
    "NCCL": tf.distribute.NcclAllReduce,
    "Hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "OneDevice": tf.distribute.ReductionToOneDevice,
}
"""The values of `spec.communication`, and how MirroredStrategy sums gradients for each."""


def prepare(spec: TrainerSpec, *, deterministic: bool) -> None:
    """Sets up logical devices, deterministic kernels, and the number of threads, because the order of additions depends on it. Call it
    before TensorFlow is used."""
    compat.join_tracing_threads_at_once()
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    logical = spec.options.logical_devices
    if logical is not None:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * logical
        )
    if deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


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
    """The devices that the job names, else all accelerators, else all CPUs. Raises BadConfiguration if one does not exist."""
    existing = [":".join(device.name.split(":")[-2:]) for device in tf.config.list_logical_devices()]
    named = spec.options.devices
    if named is None:
        return [name for name in existing if name.startswith("GPU")] or [name for name in existing if name.startswith("CPU")]
    for name in named:
        if name not in existing:
            raise BadConfiguration(f"spec.options.devices: there is no device {name} here; there are {', '.join(existing)}")
    return list(named)
