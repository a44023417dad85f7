"""Mixed precision: the forward pass computes in bfloat16, while parameters, loss and updates stay in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from muster_trainer.contract import BadConfiguration


def computes_in_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether the job asks for it. Raises BadConfiguration where the device cannot do it."""
    if precision == "BFloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        name = torch.cuda.get_device_name(device)
        raise BadConfiguration(f"spec.trainer.config.precision: {name} cannot compute in BFloat16; write Float32")
    return precision == "BFloat16"


def lower(model: nn.Module, device: torch.device) -> None:
    """Makes `model` compute its forward pass under autocast, however it is called."""
    forward = model.forward

    def lowered(*inputs: Any, **named: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            return forward(*inputs, **named)

    model.forward = lowered  # type: ignore[method-assign]


def single(outputs: Any) -> Any:
    """The same with float32 in place of bfloat16."""
    return pytree.tree_map_only(torch.Tensor, lambda one: one.float() if one.dtype == torch.bfloat16 else one, outputs)
