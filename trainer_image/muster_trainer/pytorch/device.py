"""The device of a process, and how it computes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from muster_contract.errors import BadConfiguration
from muster_trainer.pytorch.compat import tree_map
from muster_trainer.tasks.config import Config


def device_of(backend: str) -> torch.device:
    """CUDA device LOCAL_RANK, which becomes the current one, or the CPU. Raises BadConfiguration if there is no such device.

    Processes may share devices if NCCL allows it.
    """
    if backend == "nccl" or torch.cuda.is_available():
        index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
            index %= count
        if index >= count:
            raise BadConfiguration(
                f"process {index} of this replica has no GPU, because the replica sees {count}; write processesPerReplica: {count}, "
                f"or give the replica {index + 1} GPUs or more"
            )
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        torch.cuda.synchronize()  # sets the device up
        return device
    return torch.device("cpu")


def to_device(batch: Any, device: torch.device) -> Any:
    return tree_map(lambda tensor: tensor.to(device, non_blocking=True), batch)


def make_deterministic(config: Config) -> None:
    """Sets deterministic kernels and a fixed number of threads, if the config asks for it: both decide the order of additions."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import a compiler for seconds
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def fingerprint(device: torch.device) -> Mapping[str, Any]:
    """The fields of the contract's event of the same name."""
    cuda = device.type == "cuda"
    return {
        "framework": "torch",
        "version": torch.__version__,
        "libraries": {"numpy": np.__version__} | ({"cuda": torch.version.cuda} if cuda else {}),
        "devices": [torch.cuda.get_device_name(device) if cuda else "cpu"],
        "threads": torch.get_num_threads(),
    }
