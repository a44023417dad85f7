"""The device mesh of a strategy whose ranks have more than one dimension (`spec.options.mesh`)."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from muster_contract.errors import BadConfiguration
from muster_contract.options import MeshOptions
from muster_contract.trainer_spec import TrainerSpec


def mesh_of(spec: TrainerSpec, device: torch.device, *, world: int, sides: tuple[str, ...], whole: str) -> DeviceMesh:
    """A mesh with the dimensions `sides`. Neighbouring ranks differ in the last one. Without the option, `whole` has all ranks.

    Raises BadConfiguration if the option names a dimension that the strategy does not have, or does not fit the size of the world.
    """
    mesh = spec.options.mesh or MeshOptions(**{whole: world})
    for field, message in (*mesh.unsupported(sides), *mesh.problems(processes=world)):
        raise BadConfiguration(f"{field}: {message}")
    return init_device_mesh(device.type, tuple(getattr(mesh, side) for side in sides), mesh_dim_names=sides)
