"""The GPUs of this machine, shared out to the replicas of a local run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.strategies.base import WorldPlan

VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Variables for processes that share a GPU. NCCL 2.30 and later accepts that with the first one. TensorFlow and JAX would otherwise each
take all of its memory."""


def visible(environ: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs that this process may use, by the names or numbers that CUDA takes: those of CUDA_VISIBLE_DEVICES, or all."""
    if VISIBLE in environ:
        return tuple(name for each in environ[VISIBLE].split(",") if (name := each.strip()) and name != "-1")
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return tuple(str(index) for index, _ in enumerate(filter(None, numbers)))


def share(gpus: Sequence[str], plan: WorldPlan, role: str, index: int, *, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that give a replica its GPUs: one for each of its ranks, and no other replica's, as long as there are enough.
    Otherwise ranks share GPUs in turn. Replicas without a rank, such as evaluators and launchers, share the last one. The
    user's `environ` may override what is set for sharing."""
    if not gpus:
        return {}
    shared = {name: value for name, value in SHARED.items() if name not in environ}
    position = plan.positions.get((role, index))
    first = None if position is None else plan.replicas[position].first_rank
    if position is None or first is None:
        return {VISIBLE: gpus[-1], **shared}
    turns = range(first, first + plan.replicas[position].ranks)
    own = dict.fromkeys(gpus[turn % len(gpus)] for turn in turns)
    return {VISIBLE: ",".join(own), **(shared if plan.size > len(gpus) else {})}
