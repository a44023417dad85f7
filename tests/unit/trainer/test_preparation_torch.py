"""What the preparation of a process leaves behind."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from muster_contract.trainer_spec import BatchSpec, TrainerSpec
from muster_trainer.pytorch import ddp
from tests.support.descriptors import runtime

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a warm parent")]


def test_a_preparation_without_a_world_changes_no_name_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that were not prepared have these names, and each waits for the others under them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "not-there")
    with pytest.raises(RuntimeError):
        ddp.prepare(TrainerSpec(strategy=runtime(), batch=BatchSpec(), task="digits"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        assert dist.group.WORLD.group_name == "0"
    finally:
        dist.destroy_process_group()
