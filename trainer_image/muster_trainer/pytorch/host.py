"""Facts about a process that runs PyTorch."""

from __future__ import annotations

import os
import sys


def before_fork() -> None:
    """Lets torch look for CUDA without initialising it."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def unfit() -> str:
    """Why no process may be forked from this one; empty if one may."""
    return "CUDA is initialised: it does not survive a fork" if _has_cuda() else ""


def device_bytes() -> int:
    """The most memory that this process has had on its GPU."""
    return int(sys.modules["torch"].cuda.max_memory_allocated()) if _has_cuda() else 0


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
