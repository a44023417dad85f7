"""Every PyTorch strategy compared with one process, killed and resumed, and with models and options that it refuses."""

from __future__ import annotations

import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world

pytestmark = pytest.mark.torch

SYNCHRONOUS = ["FSDP", "TensorParallel", "Pipeline"]
SHORT = {"epochs": 1, "hidden": [64, 32, 16]}
WIDE = {"config": {"hidden": [2048]}}


def finished(strategy: str, size: int, document: dict[str, Any], *, codes: int = 0, **env: str) -> BareWorld:
    with world(strategy, document, size=size, **env) as running:
        assert running.finish() == [codes] * size, running.story()
    return running


def short(directory: Path | None = None, *, config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """One epoch of 23 steps, the last with 29 samples, of a model with four dense layers."""
    return trainer(directory, config={**SHORT, **(config or {})}, **fields)


def one_device(config: dict[str, Any] | None = None, **fields: Any) -> BareWorld:
    return proofs.uninterrupted("DDP", {**SHORT, **(config or {})}, size=1, **fields)


def equal_to_one_device(strategy: str, size: int, *, config: dict[str, Any] | None = None, **fields: Any) -> None:
    reference = one_device(config, **{name: value for name, value in fields.items() if name != "options"})
    proofs.losses_are_equal_to_a_millionth(reference, finished(strategy, size, short(config=config, **fields)))


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_two_processes_have_the_losses_of_one(strategy: str) -> None:
    equal_to_one_device(strategy, 2)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        pytest.param("FSDP", {}, marks=pytest.mark.thorough),
        ("FSDP", {"mesh": {"data": 4, "shard": 2}}),
        ("FSDP", {"mesh": {"data": 2, "tensor": 2}}),
        ("TensorParallel", {"mesh": {"data": 2, "tensor": 2}}),
        pytest.param("TensorParallel", {}, marks=pytest.mark.thorough),
        ("Pipeline", {"pipeline": {"microBatches": 8}}),
        ("Pipeline", {"mesh": {"data": 2, "pipeline": 2}}),
        ("Pipeline", {"mesh": {"data": 2, "pipeline": 2}, "pipeline": {"schedule": "1F1B", "microBatches": 4}}),
    ],
)
def test_four_processes_have_the_losses_of_one_in_every_layout(strategy: str, options: dict[str, Any]) -> None:
    config = {"hidden": [64, 32, 16], "epochs": 1}
    equal_to_one_device(strategy, 4, config=config, options=options)


@pytest.mark.parametrize("strategy", ["DDP", *SYNCHRONOUS])
def test_gradients_are_clipped_by_the_norm_over_the_whole_model_and_accumulated(strategy: str) -> None:
    config, batch = {"gradientClipNorm": 0.1}, {"globalSize": 64, "accumulationSteps": 2}
    clipped = one_device(config).losses()
    assert clipped != one_device().losses()
    equal_to_one_device(strategy, 2, config=config, batch=batch)


@pytest.mark.parametrize(
    ("before", "after", "size"),
    [("DDP", "FSDP", 2), ("FSDP", "FSDP", 3), ("FSDP", "DDP", 1), ("TensorParallel", "Pipeline", 2), ("Pipeline", "TensorParallel", 2)],
)
def test_a_checkpoint_of_one_strategy_is_gone_on_from_by_another(tmp_path: Path, before: str, after: str, size: int) -> None:
    config = {"optimizer": "AdamW", "learningRate": 0.003}
    whole = one_device({**config, "epochs": 2})
    finished(before, 2, short(tmp_path, config=config))
    document = short(tmp_path, config={**config, "epochs": 2})
    second = finished(after, size, document, MUSTER_ATTEMPT="1")
    assert second.events("resumed")[0]["step"] == 23
    reference = {step: float.fromhex(loss) for step, loss in whole.losses().items() if step > 23}
    assert max(abs(float.fromhex(loss) - reference[step]) for step, loss in second.losses().items()) < 1e-6
    assert sorted(second.losses()) == sorted(reference)


@pytest.mark.parametrize(
    ("strategy", "size", "fields", "expected"),
    [
        ("Pipeline", 3, {"config": {"hidden": [8]}, "batch": {"globalSize": 60}}, "3 stages, but the model has 2 layer(s) with parameters"),
        ("Pipeline", 2, {"options": {"pipeline": {"microBatches": 5}}}, "5 micro-batches do not divide a batch of 64 samples"),
        (
            "Pipeline",
            2,
            {"options": {"pipeline": {"stageMemoryMiB": 1}}, **WIDE},
            "layer 0 (Linear) alone takes 2 MiB in training, more than",
        ),
        (
            "Pipeline",
            2,
            {"options": {"pipeline": {"schedule": "PipeDream"}}, "config": {"nanLoss": "Skip"}},
            "spec.trainer.config.nanLoss: PipeDream",
        ),
        ("TensorParallel", 3, {"config": {"hidden": [64]}}, "64 rows, which 3 tensor-parallel processes cannot share evenly"),
        ("FSDP", 2, {"options": {"mesh": {"data": 3}}}, "spec.options.mesh: "),
        ("FSDP", 2, {"options": {"mesh": {"pipeline": 2}}}, "spec.options.mesh.pipeline: "),
        ("FSDP", 2, {"options": {"mesh": {"data": 2, "shard": 3}}}, "spec.options.mesh.shard: "),
    ],
)
def test_what_does_not_fit_is_refused_alike_by_all_ranks(strategy: str, size: int, fields: dict[str, Any], expected: str) -> None:
    refused = finished(strategy, size, trainer(None, **fields), codes=11)
    assert len(refused.events("error")) == size
    assert all(expected in error["message"] for error in refused.events("error")), refused.events("error")
    assert "Traceback" not in "".join(refused.output)


OWN = """
import numpy as np
import torch
def build_model(config):
    return Net() if config.get("net") else torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(config.get("width", 4), 1))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, inputs):
        return self.layer(inputs)
def dataset(config): return [(np.full(2, i, dtype=np.float32), np.float32(config.get("bad", "0") if i == 5 else i)) for i in range(16)]
def loss(outputs, batch): return (outputs[:, 0] - batch[1]) ** 2
"""


def own(directory: Path, **fields: Any) -> dict[str, Any]:
    (directory / "own.py").write_text(OWN)
    config = {"epochs": 2, "learningRate": 1e-4, "seed": 7, **fields.pop("config", {})}
    return {**trainer(None, module="own", batch={"globalSize": 8}, **fields), "config": config}


@pytest.mark.parametrize(
    ("strategy", "config", "code", "expected"),
    [
        ("TensorParallel", {}, 11, "needs the function tensor_parallel_plan(model)"),
        ("Pipeline", {"net": True}, 11, "build_model returned a Net; return a torch.nn.Sequential"),
        ("Pipeline", {"width": 3}, 10, "the model failed on 4 samples in layer 1 (Linear): RuntimeError: "),
    ],
)
def test_a_model_that_does_not_fit_is_refused_alike_by_all_ranks(
    tmp_path: Path, strategy: str, config: dict[str, Any], code: int, expected: str
) -> None:
    refused = finished(strategy, 2, own(tmp_path, config=config), codes=code, PYTHONPATH=str(tmp_path))
    assert all(expected in error["message"] for error in refused.events("error"))
    assert len(refused.events("error")) == 2


def test_a_loss_that_is_no_number_stops_all_ranks_with_step_and_batch(tmp_path: Path) -> None:
    stopped = finished("FSDP", 2, own(tmp_path, config={"bad": "nan"}), codes=10, PYTHONPATH=str(tmp_path))
    messages = {error["message"] for error in stopped.events("error")}
    assert len(messages) == 1
    assert {error["reason"] for error in stopped.events("error")} == {"LossNotFinite"}


def test_a_step_whose_loss_is_no_number_can_be_left_out(tmp_path: Path) -> None:
    config = {"bad": "nan", "nanLoss": "Skip"}
    went_on = finished("DDP", 2, own(tmp_path, config=config), PYTHONPATH=str(tmp_path))
    losses = [float(event["loss"]) for event in went_on.events("step")]
    assert [math.isnan(loss) for loss in losses].count(True) == 2  # the bad sample comes once in each epoch
    (notice,) = went_on.events("notice")
    assert notice["reason"] == "LossNotFinite"


SYNCHRONOUS_RPC = {"options": {"synchronous": True}}


@pytest.mark.parametrize("size", [3, 4])
def test_synchronous_rpc_has_the_losses_of_one_process(size: int) -> None:
    config = {"gradientClipNorm": 0.5}
    proofs.losses_are_equal_to_a_millionth(one_device(config), finished("RPC", size, short(config=config, **SYNCHRONOUS_RPC)))


def test_asynchronous_rpc_uses_each_sample_once_an_epoch_and_reports_how_stale_gradients_are(tmp_path: Path) -> None:
    config = {"epochs": 4, "optimizer": "AdamW", "learningRate": 0.02}
    document = {**trainer(tmp_path, config=config, batch={"globalSize": 512}), "task": "recommender"}
    slow = {**document, "config": {**document["config"], "stepDelaySeconds": 0.02}}
    with world("RPC", slow, size=4, MUSTER_TENSORBOARD_DIR=str(tmp_path / "summaries")) as first:
        first.wait_for_step(60)
        first.kill(1, signal.SIGTERM)
        assert first.finish() == [21] * 4, first.story()
    second = finished("RPC", 4, document, MUSTER_ATTEMPT="1")
    steps = first.events("step") + second.events("step")
    assert [step["step"] for step in steps] == list(range(1, steps[0]["totalSteps"] + 1))
    assert sum(step["samples"] for step in steps) == 4 * 36_000
    stale = [step["staleness"] for step in second.events("step")]
    assert max(stale) > 0
    metrics = second.metrics()
    assert metrics["stalenessMost"] == max(stale)
    assert len(list((tmp_path / "summaries").iterdir())) == 1  # of the chief alone
    assert metrics["accuracy"] > 0.8


SLOW_COPY = """
import os
import time
from muster_trainer.training import tensor_table
share_out = tensor_table.share_out
def slow(of_all):
    time.sleep(os.environ["MUSTER_ROLE"] == "ps")
    return share_out(of_all)
tensor_table.share_out = slow
"""


def test_no_rpc_step_begins_before_the_servers_have_copied_their_parameters(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    document = {
        **own(tmp_path, config={"epochs": 4}, **SYNCHRONOUS_RPC),
        "checkpoint": trainer(checkpoints)["checkpoint"] | {"everySteps": 4},
    }
    (tmp_path / "own.py").write_text(OWN + SLOW_COPY)
    first = finished("RPC", 3, document, PYTHONPATH=str(tmp_path))
    assert [commit["step"] for commit in first.events("commit")] == [4, 8]
    shutil.rmtree(checkpoints / first.events("commit")[-1]["path"])
    second = finished("RPC", 3, document, MUSTER_ATTEMPT="1", PYTHONPATH=str(tmp_path))
    assert [(step["step"], step["loss"]) for step in second.events("step")] == [
        (step["step"], step["loss"]) for step in first.events("step") if step["step"] > 4
    ]


def test_a_model_with_running_averages_is_refused_by_rpc(tmp_path: Path) -> None:
    document = own(tmp_path)
    text = (tmp_path / "own.py").read_text().replace("torch.nn.Linear(2, 4),", "torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4),")
    (tmp_path / "own.py").write_text(text)
    refused = finished("RPC", 3, document, codes=11, PYTHONPATH=str(tmp_path))
    assert {error["reason"] for error in refused.events("error")} == {"BadConfiguration"}


def test_rpc_without_a_parameter_server_is_refused() -> None:
    refused = finished("RPC", 2, trainer(None), codes=11, MUSTER_ROLE="worker")
    assert proofs.last_error(refused)["reason"] == "BadConfiguration"


@pytest.mark.parametrize("options", [{"synchronous": True}, {}])
def test_an_error_in_a_workers_loss_ends_all_ranks_alike(tmp_path: Path, options: dict[str, Any]) -> None:
    document = own(tmp_path, options=options)
    (tmp_path / "own.py").write_text(OWN + "\n\ndef loss(outputs, batch):\n    raise ValueError('bad width')\n")
    failed = finished("RPC", 3, document, codes=10, PYTHONPATH=str(tmp_path))
    assert len({error["message"] for error in failed.events("error")}) == 1
    assert "loss failed: ValueError: bad width" in proofs.last_error(failed)["message"]


def test_a_language_model_is_trained_alike_by_every_layout() -> None:
    config = {"epochs": 1, "optimizer": "AdamW", "learningRate": 0.003, "width": 32, "heads": 2, "context": 32}
    document = {**trainer(None, config=config), "task": "gpt"}
    one = finished("DDP", 1, document)
    for strategy in ["DDP", *SYNCHRONOUS]:
        proofs.losses_are_equal_to_a_millionth(one, finished(strategy, 2, document))
    proofs.losses_are_equal_to_a_millionth(one, finished("RPC", 3, {**document, **SYNCHRONOUS_RPC}))


@pytest.mark.parametrize("strategy", ["FSDP", "TensorParallel", "Pipeline"])
def test_a_world_of_one_runs_every_strategy(strategy: str) -> None:
    proofs.losses_are_equal_to_a_millionth(one_device(), finished(strategy, 1, short()))
