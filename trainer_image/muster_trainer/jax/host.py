"""Facts about a process that runs JAX."""

from __future__ import annotations

from muster_trainer.jax.compat import has_devices


def unfit() -> str:
    """Why no process may be forked from this one; empty if one may. The threads of a device do not survive a fork."""
    return "JAX has initialised its devices" if has_devices() else ""


def device_bytes() -> int:
    """The most memory that this process has had on its devices; 0 on the CPU, where it is the host's."""
    if not has_devices():
        return 0
    import jax

    return sum((device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices())
