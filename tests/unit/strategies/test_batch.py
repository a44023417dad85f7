"""The number of devices that share a batch."""

from __future__ import annotations

import pytest

from muster.api.spec import TrainingJobSpec
from muster.strategies.registry import strategy_of


@pytest.mark.parametrize(
    ("strategy", "worker", "options", "devices"),
    [
        ("DDP", {"replicas": 4, "resources": {"limits": {"nvidia.com/gpu": 4}}}, {}, 16),
        ("MultiWorkerMirrored", {"replicas": 4, "resources": {"limits": {"nvidia.com/gpu": 4}}}, {}, 16),
        ("Mirrored", {}, {"devices": ["GPU:0", "GPU:1"]}, 2),
        ("OneDevice", {"resources": {"limits": {"nvidia.com/gpu": 4}}}, {}, 1),
        ("TensorParallel", {"replicas": 4}, {}, 1),
        ("Pipeline", {"replicas": 4}, {}, 1),
        ("Pipeline", {"replicas": 4}, {"mesh": {"data": 2, "pipeline": 2}}, 2),
        ("FSDP", {"replicas": 4}, {}, 4),
        ("FSDP", {"replicas": 4}, {"mesh": {"data": 2, "tensor": 2}}, 2),
        ("TPU", {"replicas": 2}, {"tpu": {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}}, 8),
    ],
)
def test_a_batch_is_shared_over_devices_that_hold_different_copies(strategy: str, worker: dict, options: dict, devices: int) -> None:
    spec = TrainingJobSpec.model_validate(
        {"strategy": strategy, "trainer": {"task": "digits"}, "roles": {"worker": worker}, "options": options}
    )
    assert strategy_of(spec.strategy).data_parallel(spec) == devices
