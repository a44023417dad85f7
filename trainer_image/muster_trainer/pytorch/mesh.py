"""The device mesh of a strategy whose ranks have more than one dimension (`spec.options.mesh`)."""

from __future__ import annotations

from math import prod

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec

SIDES = ("data", "pipeline", "tensor")


def mesh_of(spec: TrainerSpec, device: torch.device, *, world: int, sides: tuple[str, ...], whole: str) -> DeviceMesh:
    """A mesh with the dimensions `sides`. Neighbouring ranks differ in the last one. Without the option, all ranks are along `whole`.

    Raises BadConfiguration if the option names a dimension that the strategy does not have, or does not fit the size of the world.
    """
    requested = spec.options.get("mesh") or {whole: world}
    sizes = {side: int(requested.get(side) or 1) for side in SIDES}
    for side, size in sizes.items():
        if size > 1 and side not in sides:
            raise BadConfiguration(f"spec.options.mesh.{side}: the strategy has no such side; it has {' and '.join(sides)}")
    if prod(sizes.values()) != world:
        product = " x ".join(f"{sizes[side]} ({side})" for side in sides)
        raise BadConfiguration(f"spec.options.mesh: {product} is not the {world} processes of the job; change the mesh or the workers")
    return init_device_mesh(device.type, tuple(sizes[side] for side in sides), mesh_dim_names=sides)
