"""Facts about a process that runs JAX."""

from __future__ import annotations

from muster_trainer.jax.compat import has_devices


def unfit() -> str:
    """The reason why no process may be forked from this one: the threads of a device do not survive a fork. Empty if forks are safe."""
    return "JAX has initialised its devices" if has_devices() else ""


def device_bytes() -> int:
    """The peak of the memory that this process used on its devices, in bytes. 0 for CPUs, because their memory is the host's."""
    if not has_devices():
        return 0
    import jax

    return sum((device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices())
