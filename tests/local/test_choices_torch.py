"""What a job may choose beside the strategy, in PyTorch: warm-up, precision, compressed gradients, weights of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import trainer, world

pytestmark = pytest.mark.torch
TARGET = 0.9


def test_the_learning_rate_grows_to_the_scaled_one_alike_in_every_world() -> None:
    warm = {"epochs": 1, "warmupSteps": 12}
    one = proofs.uninterrupted("DDP", {**warm, "learningRate": 0.1}, size=1)
    linear = {"globalSize": 64, "accumulationSteps": 2, "learningRateScaling": "Linear"}
    proofs.losses_are_equal_to_a_millionth(one, proofs.uninterrupted("DDP", {**warm, "learningRate": 0.05}, size=2, batch=linear))
    servers = proofs.uninterrupted("RPC", {**warm, "learningRate": 0.1}, size=3, options={"synchronous": True})
    proofs.losses_are_equal_to_a_millionth(one, servers)
    assert one.losses() != proofs.uninterrupted("DDP", {"epochs": 1, "learningRate": 0.1}, size=1).losses()


def test_a_world_killed_while_it_warms_up_goes_on_bit_for_bit(tmp_path: Path) -> None:
    proofs.killed_world_continues_bit_for_bit("FSDP", tmp_path, {"warmupSteps": 40})


SCHEDULED = """
import numpy as np
import torch

class Number(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(()))
    def forward(self, inputs): return inputs * self.number

def dataset(config): return [(np.float32(1), np.float32(0))] * 12
def build_model(config): return Number()
def loss(outputs, batch): return outputs
def schedule(step, config): return config.decay ** step
"""


def scheduled(directory: Path, more: str = "", **fields: Any) -> dict[str, Any]:
    (directory / "scheduled.py").write_text(SCHEDULED + more)
    config = {"epochs": 2, "learningRate": 0.5, "optimizer": "SGD", "momentum": 0.0, "warmupSteps": 4, "decay": 0.5}
    return trainer(None, module="scheduled", config=config, batch={"globalSize": 2}, **fields)


@pytest.mark.parametrize(("strategy", "size"), [("DDP", 1), ("RPC", 3)])
def test_the_tasks_schedule_scales_the_rate_of_each_step_together_with_the_warm_up(strategy: str, size: int, tmp_path: Path) -> None:
    document = scheduled(tmp_path, options={"synchronous": True} if strategy == "RPC" else {})
    with world(strategy, document, size=size, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [0] * size, running.story()
    rates = [0.5 * min((step + 1) / 4, 1) * 0.5**step for step in range(12)]
    assert [float(step["loss"]) for step in running.events("step")] == pytest.approx([-sum(rates[:step]) for step in range(12)], rel=1e-6)


@pytest.mark.parametrize(
    ("more", "code", "expected"),
    [
        (
            "def schedule(step, config): return -step",
            10,
            "module scheduled: schedule must return a factor of the learning rate, 0 or more; for step 1 it returned -1",
        ),
        (
            "def optimizer(model, config):\n"
            "    made = torch.optim.SGD(model.parameters(), lr=config.learningRate)\n"
            "    made.register_step_post_hook(lambda *_: made.scheduler.step())\n"
            "    made.scheduler = torch.optim.lr_scheduler.StepLR(made, 1)\n"
            "    return made",
            11,
            "the optimizer's learning rate is set by a scheduler, whose state is in no checkpoint; leave it out and define schedule(step,",
        ),
    ],
)
def test_rates_that_cannot_be_are_refused_in_one_line(more: str, code: int, expected: str, tmp_path: Path) -> None:
    with world("DDP", scheduled(tmp_path, more), PYTHONPATH=str(tmp_path)) as refused:
        assert refused.finish() == [code, code], refused.story()
    assert all(error["message"].startswith(expected) for error in refused.events("error"))


@pytest.mark.parametrize("strategy", ["DDP", "FSDP", "TensorParallel", "Pipeline"])
def test_bfloat16_reaches_the_target_with_parameters_in_float32(strategy: str, tmp_path: Path) -> None:
    import torch

    config = {"epochs": 6, "hidden": [64, 32], "precision": "BFloat16", "export": "model"}
    with world(strategy, trainer(tmp_path, config=config)) as lower:
        assert lower.finish() == [0, 0], lower.story()
    single = proofs.uninterrupted("DDP", {**config, "precision": "Float32", "export": ""}, size=1)
    assert 1e-6 < abs(float(lower.events("step")[20]["loss"]) - float(single.events("step")[20]["loss"])) < 0.02
    assert lower.metrics()["accuracy"] > TARGET
    state = torch.load(tmp_path / "model" / "model.pt", weights_only=True)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


@pytest.mark.parametrize("how", ["FP16", pytest.param("BF16", marks=pytest.mark.thorough)])
def test_compressed_gradients_lose_something_and_reach_the_target_all_the_same(how: str) -> None:
    config = {"epochs": 6}
    whole = proofs.uninterrupted("DDP", config)
    compressed = proofs.uninterrupted("DDP", config, options={"gradientCompression": how})
    assert compressed.losses() != whole.losses()
    assert abs(float(compressed.events("step")[20]["loss"]) - float(whole.events("step")[20]["loss"])) < 0.1
    assert compressed.metrics()["accuracy"] > TARGET


WEIGHED = """
import numpy as np
import torch

def dataset(config): return [(np.full(2, i, np.float32) / 20, np.float32(i % 3), np.float32(i % 4)) for i in range(19)]

def build_model(config):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    torch.nn.init.zeros_(model[0].weight), torch.nn.init.zeros_(model[0].bias)
    return model

def loss(outputs, batch): return (outputs - batch[1]) ** 2
"""


def weighed(directory: Path, **fields: Any) -> dict[str, Any]:
    (directory / "weighed.py").write_text(WEIGHED)
    return trainer(None, module="weighed", config={"epochs": 2, "learningRate": 0.01}, **fields)


@pytest.mark.parametrize("strategy", ["DDP", "Pipeline"])
def test_each_loss_counts_by_the_weight_of_its_sample(strategy: str, tmp_path: Path) -> None:
    from muster_trainer.data import Order

    batch = {"globalSize": 8, "accumulationSteps": 2}
    runs = []
    for name, size in (("DDP", 1), (strategy, 2)):
        document = weighed(tmp_path, batch=batch)
        if name == "Pipeline":
            document["options"] = {"mesh": {"data": 2}}
        with world(name, document, size=size, PYTHONPATH=str(tmp_path)) as running:
            assert running.finish() == [0] * size, running.story()
        runs.append(running)
    first = Order(7, 19, 8).batch_indices(0)  # the model begins with 0 for every sample
    assert float(runs[0].events("step")[0]["loss"]) == pytest.approx(sum((i % 4) * (i % 3) ** 2 for i in first) / 8)
    proofs.losses_are_equal_to_a_millionth(*runs)


def test_a_world_that_has_become_smaller_takes_no_more_samples_at_a_time_and_loses_the_same(tmp_path: Path) -> None:
    document = weighed(tmp_path, batch={"globalSize": 8})
    seen = tmp_path / "seen"
    counting = f"""
class Counting(torch.nn.Sequential):
    def forward(self, inputs):
        if self.training:
            with open({str(seen)!r}, "a") as file:
                print(len(inputs), file=file)
        return super().forward(inputs)
plain = build_model
def build_model(config): return Counting(*plain(config))
"""
    (tmp_path / "weighed.py").write_text(WEIGHED + counting)
    runs = []
    for most, size in ((None, 2), (3, 1)):
        seen.unlink(missing_ok=True)
        batch = {"globalSize": 8, "accumulationSteps": 1, "learningRateScaling": "None", "mostAtOnce": most}
        with world("DDP", {**document, "batch": batch}, size=size, PYTHONPATH=str(tmp_path)) as running:
            assert running.finish() == [0] * size, running.story()
        runs.append(running)
        assert max(map(int, seen.read_text().split())) == (most or 4)
    proofs.losses_are_equal_to_a_millionth(*runs)


def test_weights_need_a_loss_per_sample(tmp_path: Path) -> None:
    document = weighed(tmp_path)
    (tmp_path / "weighed.py").write_text(WEIGHED + "\ndef loss(outputs, batch): return ((outputs - batch[1]) ** 2).mean()")
    with world("DDP", document, PYTHONPATH=str(tmp_path)) as refused:
        assert refused.finish() == [10, 10], refused.story()
    assert {proofs.field_of(error) for error in refused.events("error")} == {"module weighed"}
