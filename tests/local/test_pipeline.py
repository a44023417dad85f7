"""Pipelines: schedules that are not synchronous against a reference on one device, and checkpoints under another cut."""

from __future__ import annotations

import json
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import Order
from muster_trainer.pytorch.optimizers import default_optimizer
from muster_trainer.pytorch.seeds import seed_all
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import load_task
from tests.local import proofs
from tests.support import descriptors
from tests.support.bare_worlds import BareWorld, trainer, world
from tests.support.seeds import seeded_random

pytestmark = pytest.mark.torch

PIPEDREAM = {"pipeline": {"schedule": "PipeDream", "microBatches": 4}}


def finished(strategy: str, size: int, document: dict[str, Any], **env: str) -> BareWorld:
    with world(strategy, document, size=size, **env) as running:
        assert running.finish() == [0] * size, running.story()
    return running


def cut_of(run: BareWorld) -> list[int]:
    """The number of layers of each stage."""
    (cut,) = (measured for measured in run.events("measurement") if measured["what"] == "pipeline")
    assert [layer["name"] for layer in cut["layers"]] == [name for stage in cut["stages"] for name in stage["layers"]]
    return [len(stage["layers"]) for stage in cut["stages"]]


class PipeDreamOnOneDevice:
    """The reference for PipeDream, computed with every version of the weights of every stage. Micro-batch m of a stage with k later
    stages uses the weights after m - k updates, or those from the moment when the pipeline was empty. Its gradient updates the newest
    weights."""

    def __init__(self, document: dict[str, Any], cut: list[int]) -> None:
        spec = TrainerSpec.from_json(json.dumps({"strategy": descriptors.document("Pipeline"), **document}))
        self.task = load_task(spec)
        self.order = Order(self.task.config.seed, len(self.task.train), spec.batch.global_size, 1)
        self.size = spec.batch.global_size // spec.options.pipeline.micro_batches
        seed_all(self.task.config.seed, 0, 0)
        layers = list(self.task.build_model(self.task.config))
        ends = [sum(cut[:stage]) for stage in range(len(cut) + 1)]
        self.stages = [torch.nn.Sequential(*layers[first:end]) for first, end in pairwise(ends)]
        self.optimizers = [default_optimizer(stage, self.task.config) for stage in self.stages]
        self.versions = [[self._copy(stage)] for stage in self.stages]

    @staticmethod
    def _copy(stage: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {name: weight.detach().clone() for name, weight in stage.named_parameters()}

    def losses(self) -> dict[int, float]:
        """The losses of each step. The pipeline is emptied after each epoch for the evaluation."""
        losses, done, empty = {}, 0, 0
        for step in range(self.task.config.epochs * self.order.steps_per_epoch):
            if step % self.order.steps_per_epoch == 0:
                empty = done
            indices, total = self.order.batch_indices(step), 0.0
            for first in range(0, len(indices), self.size):
                total += self._micro_batch(indices[first : first + self.size], done, empty)
                done += 1
            losses[step + 1] = total / len(indices)
        return losses

    def _micro_batch(self, indices: Any, number: int, empty: int) -> float:
        batch = [torch.as_tensor(part) for part in read_batch(self.task, self.task.train, indices)]
        values, seen = batch[0], []
        for stage, part in enumerate(self.stages):
            version = self.versions[stage][max(empty, number - (len(self.stages) - 1 - stage))]
            seen.append({name: weight.detach().requires_grad_() for name, weight in version.items()})
            values = torch.func.functional_call(part, seen[-1], (values,))
        loss = self.task.loss(values, batch).sum()
        (loss / len(indices)).backward()
        for part, optimizer, weights, versions in zip(self.stages, self.optimizers, seen, self.versions, strict=True):
            for name, parameter in part.named_parameters():
                parameter.grad = weights[name].grad
            optimizer.step()
            versions.append(self._copy(part))
        return loss.item()


def test_pipedream_computes_each_backward_pass_with_the_weights_of_its_forward_pass() -> None:
    config = {"epochs": 2, "hidden": [64, 32, 16], "evaluateEveryEpochs": 1}
    document = trainer(None, config=config, options=PIPEDREAM)
    run = finished("Pipeline", 3, document)
    assert {step["staleness"] for step in run.events("step")} == {2}
    expected = PipeDreamOnOneDevice(document, cut_of(run)).losses()
    losses = {step: float.fromhex(loss) for step, loss in run.losses().items()}
    assert losses.keys() == expected.keys()
    assert max(abs(losses[step] - expected[step]) for step in losses) < 1e-5
    assert run.metrics()["stalenessMost"] == 2


def test_pipedream_killed_and_resumed_goes_on_bit_for_bit_with_one_that_saved_at_the_same_steps(tmp_path: Path) -> None:
    config = {"hidden": [64, 32, 16], "epochs": 2}
    whole = finished("Pipeline", 2, trainer(tmp_path / "whole", config=config, options=PIPEDREAM)).losses()
    document = trainer(tmp_path / "killed", config={**config, **proofs.SLOW}, options=PIPEDREAM)
    ignored = shutil.ignore_patterns("step-*", "attempts")  # all but the cut: a second measurement may give another one
    shutil.copytree(tmp_path / "whole", tmp_path / "killed", ignore=ignored)
    with world("Pipeline", document) as first:
        random = seeded_random()
        first.wait_for_step(random.choice([25, 26, 27, 28]))
        first.kill(random.choice([0, 1]), signal.SIGKILL)
        first.finish()
    second = proofs.second_attempt("Pipeline", document)
    assert second.events("resumed")[0]["step"] >= 10
    assert cut_of(second) == cut_of(first)
    assert first.events("measurement")[0]["inherited"]
    assert second.events("measurement")[0]["inherited"]
    assert {**first.losses(), **second.losses()} == whole


def test_a_checkpoint_is_gone_on_from_under_another_cut_and_a_cut_by_cost_is_no_even_one_where_layers_differ(tmp_path: Path) -> None:
    even = {"pipeline": {"cut": "Even", "schedule": "1F1B", "microBatches": 3}}
    by_cost = {"pipeline": {"schedule": "1F1B", "microBatches": 3}}
    fields: dict[str, Any] = {"task": "skewed", "batch": {"globalSize": 60}}
    reference = finished("DDP", 1, trainer(None, config={"epochs": 2}, **fields))
    first = finished("Pipeline", 3, trainer(tmp_path, config={"epochs": 1}, options=even, **fields))
    second = finished("Pipeline", 3, trainer(tmp_path, config={"epochs": 2}, options=by_cost, **fields), MUSTER_ATTEMPT="1")
    assert second.events("resumed")[0]["step"] == max(first.losses())
    assert cut_of(first) != cut_of(second)
    assert cut_of(second)[0] < cut_of(first)[0]  # the first layers do most of the work
    one = {step: float.fromhex(loss) for step, loss in reference.losses().items()}
    cut = {step: float.fromhex(loss) for step, loss in {**first.losses(), **second.losses()}.items()}
    assert max(abs(one[step] - cut[step]) for step in one) < 1e-5
    (notice,) = second.events("notice")
    assert notice["reason"] == "PipelineCut"


TURNED = """
import numpy as np
import torch

class Turned(torch.nn.Module):
    def forward(self, values): return values.unflatten(1, (2, 3)).transpose(1, 2)

class Flat(torch.nn.Linear):
    def forward(self, values): return super().forward(values.flatten(1))

def dataset(config, split): return [(np.array([i % 5, i % 3], np.float32) / 5, np.float32(i % 2)) for i in range(48)]

def build_model(config):
    return torch.nn.Sequential(torch.nn.Linear(2, 6), Turned(), Flat(6, 1))

def loss(outputs, batch): return (outputs[:, 0] - batch[1]) ** 2
"""


@pytest.mark.parametrize("schedule", ["1F1B", "PipeDream"])
def test_what_a_stage_sends_need_not_be_contiguous(schedule: str, tmp_path: Path) -> None:
    (tmp_path / "turned.py").write_text(TURNED)
    fields: dict[str, Any] = {"module": "turned", "config": {"epochs": 2, "learningRate": 0.05}, "batch": {"globalSize": 16}}
    one = finished("DDP", 1, trainer(None, **fields), PYTHONPATH=str(tmp_path))
    options = {"pipeline": {"cut": "Even", "schedule": schedule, "microBatches": 2}}
    two = finished("Pipeline", 2, trainer(None, options=options, **fields), PYTHONPATH=str(tmp_path))
    assert cut_of(two) == [2, 1]  # between Turned and Flat
    if schedule == "1F1B":
        proofs.losses_are_equal_to_a_millionth(one, two)
        assert two.metrics()["loss"] == pytest.approx(one.metrics()["loss"], abs=1e-6)
