"""The accelerators and the CPU of a role."""

from __future__ import annotations

from muster.api.constants import TRAINER_CONTAINER
from muster.api.quantity import Quantity, amount_of
from muster.api.spec import Role
from muster.api.unchecked import mapping, mappings

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources whose devices NCCL (RCCL for AMD) can connect."""
TPU = "google.com/tpu"
ACCELERATORS = (*GPUS, "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi", TPU)


def limits(role: Role) -> dict[str, Quantity]:
    """The trainer container's limits: those of the role, overridden by those of its template."""
    for _, container in mappings(mapping(role.template.get("spec")).get("containers")):
        if container.get("name") == TRAINER_CONTAINER:
            overlay = mapping(mapping(container.get("resources")).get("limits"))
            return {**role.resources.limits, **{name: value for name, value in overlay.items() if isinstance(value, str | int)}}
    return dict(role.resources.limits)


def whole(quantity: Quantity) -> int | None:
    """A count of devices. None if the value is not one. Kubernetes accepts only whole numbers of extended resources."""
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def count(role: Role, names: tuple[str, ...] = ACCELERATORS) -> int:
    """The number of accelerators of each replica."""
    return sum(whole(quantity) or 0 for name, quantity in limits(role).items() if name in names)


def cpus(role: Role) -> float | None:
    """The CPU limit in cores. None if there is none. The notation is that of Kubernetes: `500m` is half a core."""
    amount = amount_of(limits(role).get("cpu"))
    return None if amount is None else float(amount)
