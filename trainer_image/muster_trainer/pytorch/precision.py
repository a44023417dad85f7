"""Mixed precision. The forward pass computes in bfloat16. Parameters, loss and updates stay in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from muster_contract.errors import BadConfiguration
from muster_trainer.pytorch.compat import tree_map_only


def computes_in_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether `precision` is BFloat16. Raises BadConfiguration if the device cannot compute in it."""
    if precision == "BFloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        name = torch.cuda.get_device_name(device)
        raise BadConfiguration(f"spec.trainer.config.precision: {name} cannot compute in BFloat16; write Float32")
    return precision == "BFloat16"


def lower(model: nn.Module, device: torch.device) -> None:
    """Makes `model` compute its forward pass under autocast."""
    forward = model.forward

    def lowered(*inputs: Any, **named: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            return forward(*inputs, **named)

    model.forward = lowered


def single(outputs: Any) -> Any:
    """`outputs`, with bfloat16 tensors converted to float32."""
    return tree_map_only(torch.Tensor, lambda one: one.float() if one.dtype == torch.bfloat16 else one, outputs)
