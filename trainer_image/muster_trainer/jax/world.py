"""Joins the JAX world that the environment names, and distinguishes a lost peer from a failure of the training code."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from muster_contract.errors import BadConfiguration, PeerLost
from muster_trainer.host.waiting import START_SECONDS, wait_for

HEARTBEAT_SECONDS = 15 * 60
"""JAX ends all processes of a world if one sends no heartbeat for this time. It is long, because the operator decides about such a peer
earlier. If a peer ends, gloo and NCCL notice its broken connections at once."""
SHUTDOWN_SECONDS = 30
AXIS = "data"
SHARED = PartitionSpec(AXIS)
WHOLE = PartitionSpec()

_PEER_LOST = re.compile(
    r"gloo|nccl|connection (was )?(closed|reset|refused)|socket|timed? ?out|deadline|unavailable|broken pipe|coordination|heartbeat",
    re.IGNORECASE,
)


class World:
    """All devices of all processes, in the order of their processes. They are one axis, over which data are distributed."""

    def __init__(self) -> None:
        devices = sorted(_devices(), key=lambda device: (device.process_index, device.id))
        self.rank, self.size = jax.process_index(), jax.process_count()
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.platform: str = devices[0].platform
        self.devices = len(devices)
        self.positions = [position for position, device in enumerate(devices) if device.process_index == self.rank]
        """The positions of this process's devices."""
        if len(self.positions) * self.size != self.devices:
            raise BadConfiguration(
                f"rank {self.rank} has {len(self.positions)} of {self.devices} devices in a world of {self.size} processes; "
                "give every worker the same number of accelerators"
            )

    def shared(self, rows: np.ndarray) -> jax.Array:
        """One array of the `rows` of all processes, in the order of ranks. Every process must have the same number of rows. Each device
        gets an equal part."""
        array: jax.Array = jax.make_array_from_process_local_data(NamedSharding(self.mesh, SHARED), _narrowed(rows))
        return array

    def copied(self, numbers: Any) -> jax.Array:
        """A copy of `numbers` on every device. They must be the same in all processes."""
        array = _narrowed(np.asarray(numbers))
        return jax.make_array_from_callback(array.shape, NamedSharding(self.mesh, WHOLE), lambda part: array[part])

    def of_first(self, tree: Any) -> Any:
        """The numbers of rank 0, in every process."""
        if self.size == 1:
            return tree
        with self.peers():
            return multihost_utils.broadcast_one_to_all(tree)

    def gather(self, text: str) -> list[str]:
        """The texts of all processes in the order of ranks."""
        content = np.frombuffer(text.encode(), np.uint8)
        with self.peers():
            lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(content)))).reshape(-1)
            width = 1 << max(6, int(lengths.max() - 1).bit_length())  # a power of two, because JAX compiles each shape anew
            rows = np.asarray(multihost_utils.process_allgather(np.pad(content, (0, width - len(content)))))
        return [row[:length].tobytes().decode() for row, length in zip(rows.reshape(self.size, width), lengths, strict=True)]

    @contextmanager
    def peers(self) -> Iterator[None]:
        """Raises PeerLost if a collective in the block fails. The text of the error decides, because JAX has one class for all errors. It
        raises ValueError where numpy reads the result of a collective that has failed."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if self.size > 1 and _PEER_LOST.search(str(error)):
                raise PeerLost(f"rank {self.rank}: {_line(error)}") from error
            raise

    def leave(self) -> None:
        """Waits for the other processes, because otherwise the end of this process would look like a lost peer to them."""
        with suppress(jax.errors.JaxRuntimeError):
            jax.distributed.shutdown()


def _devices() -> list[jax.Device]:
    """The devices of all processes. Raises PeerLost if a process has ended before it could name its own."""
    try:
        return jax.devices()
    except RuntimeError as error:
        if int(os.environ.get("JAX_NUM_PROCESSES", "1")) > 1 and _PEER_LOST.search(str(error)):
            raise PeerLost(f"the devices of a peer are unknown: {_line(error)}") from error
        raise


def join() -> World:
    """Joins the world, and waits for all its processes. Raises PeerLost if one does not start in time, or the port is in use."""
    size = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
    if size > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address, rank = os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_PROCESS_ID"])
        if rank:
            wait_for({"rank 0": address}, START_SECONDS)
        else:
            _check_port(address)
        try:
            jax.distributed.initialize(
                address,
                size,
                rank,
                cluster_detection_method="deactivate",
                initialization_timeout=int(START_SECONDS),
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            )
        except RuntimeError as error:  # the base class of JaxRuntimeError
            raise PeerLost(f"the world at {address} did not come up: {_line(error)}") from error
    return World()


def fingerprint(*, threads: int) -> dict[str, Any]:
    """The result of `EvaluationEngine.fingerprint` for this process."""
    return {
        "framework": "jax",
        "version": jax.__version__,
        "libraries": {name: version(name) for name in ("jaxlib", "optax", "numpy")},
        "devices": [device.device_kind for device in jax.local_devices()],
        "threads": threads,
    }


def _check_port(address: str) -> None:
    """Raises PeerLost if another program listens at the port, because the service of JAX would crash then."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):  # `muster run` holds the port with this option
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise PeerLost(f"cannot listen at {address}: {error.strerror}; is the port in use by another program?") from error


def _narrowed(array: np.ndarray) -> np.ndarray:
    """The array in a type that JAX computes with. Types of 64 bits become 32 bits unless `jax_enable_x64` is set."""
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _line(error: Exception) -> str:
    """The message on one line, without the prefixes that JAX adds for each program that waited for the failed one."""
    return re.sub(r"(Error dispatching computation: )+", "", " ".join(str(error).split()))[:500]
