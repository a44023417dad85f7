"""Real training with DDP: processes on loopback are killed, stopped and started again."""

from __future__ import annotations

import json
import math
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world

pytestmark = pytest.mark.torch
EXAMPLES = Path(__file__).parents[2] / "examples" / "own-model"


def test_accumulation_changes_nothing_but_memory() -> None:
    batch = {"globalSize": 64, "accumulationSteps": 3}
    whole, portions = proofs.uninterrupted("DDP").losses(), proofs.uninterrupted("DDP", batch=batch).losses()
    assert max(abs(float.fromhex(whole[step]) - float.fromhex(portions[step])) for step in whole) < 1e-6


def test_a_finished_job_started_again_evaluates_and_ends(tmp_path: Path) -> None:
    document = trainer(tmp_path)
    with world("DDP", document, size=1) as first:
        assert first.finish() == [0], first.story()
    again = proofs.second_attempt("DDP", document, size=1)
    assert again.losses() == {}
    assert again.metrics() == first.metrics()


def test_another_batch_size_is_refused_by_name_and_never_starts_over(tmp_path: Path) -> None:
    with world("DDP", trainer(tmp_path), size=1) as first:
        assert first.finish() == [0], first.story()
    other = trainer(tmp_path, batch={"globalSize": 32})
    with world("DDP", other, size=2, attempt=1) as refused:
        assert refused.finish() == [11, 11], refused.story()
    assert proofs.last_error(refused)["reason"] == "BadConfiguration"
    assert all(part in proofs.last_error(refused)["message"] for part in ("spec.batch.globalSize", "64", "32", "checkpoint.name"))
    other["checkpoint"]["resume"] = "Never"
    again = proofs.second_attempt("DDP", other, size=1, MUSTER_JOB_CREATED="2026-11-21T12:00:00Z")
    assert again.events("resumed")[0]["step"] == 0
    assert min(again.losses()) == 1


@pytest.mark.parametrize(
    ("interval", "reported"),
    [pytest.param({"everySeconds": 0.3}, None, marks=pytest.mark.thorough), ({"interval": "Continuous"}, 0.0)],
    ids=["fixed", "continuous"],
)
def test_saves_by_time_are_at_a_step_of_all_ranks(tmp_path: Path, interval: dict[str, Any], reported: float | None) -> None:
    document = trainer(tmp_path, config=proofs.SLOW, checkpoint={"everySteps": None, **interval})
    with world("DDP", document) as running:
        running.wait_for_event("commit", lambda event: event["reason"] == "Periodic" and event.get("intervalSeconds") == reported)
        assert running.finish() == [0, 0], running.story()


def test_a_stop_before_the_first_step_ends_at_once(tmp_path: Path) -> None:
    with world("DDP", trainer(tmp_path, config=proofs.SLOW)) as running:
        running.wait_for_event("phase", lambda event: event["rank"] == 0)
        running.kill(0, signal.SIGTERM)
        code = running.processes[0].wait(240)
        assert code == 21, running.story()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with world("DDP", trainer(tmp_path), size=1, MASTER_PORT=port) as running:
            assert running.finish() == [20], running.story()
    assert proofs.last_error(running)["reason"] == "PeerLost"
    assert port in proofs.last_error(running)["message"]


def test_a_checkpoint_directory_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with world("DDP", trainer(tmp_path / "file" / "checkpoints")) as running:
        assert running.finish() == [31, 31], running.story()
    assert proofs.last_error(running)["reason"] == "StorageUnavailable"
    assert str(tmp_path / "file") in proofs.last_error(running)["message"]


def test_nccl_without_cuda_is_refused_by_all_ranks() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with world("DDP", trainer(None, communication="NCCL")) as running:
        assert running.finish() == [11, 11], running.story()
    assert [error["reason"] for error in running.events("error")] == ["BadConfiguration"] * 2
    assert {proofs.field_of(error) for error in running.events("error")} == {"communication"}


AVERAGED = """
import os

class Averages(nn.BatchNorm1d):
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("of", torch.zeros(width, 2)[:, 0])  # not contiguous
    def forward(self, inputs):
        if self.training: self.of += int(os.environ["RANK"])
        return super().forward(inputs)

def build_model(config):
    global averages
    averages = Averages(32)
    return nn.Sequential(nn.Linear(30, 32), averages, nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1), nn.Flatten(0))

def schedule(step, config): return 0.5 + 0.5 * (step % 7)

def optimizer(model, config):
    made = torch.optim.AdamW(model.parameters(), lr=config.learningRate)
    made.register_step_post_hook(lambda *_: [group.update(weight_decay=0.9 * group["weight_decay"]) for group in made.param_groups])
    return made

accuracy = metrics
def metrics(outputs, batch):
    return {**accuracy(outputs, batch), "others": averages.of.sum()}
"""


@pytest.mark.parametrize("strategy", ["DDP", pytest.param("FSDP", marks=pytest.mark.thorough)])
def test_a_module_of_the_user_resumes_bit_for_bit_with_dropout_averages_a_schedule_and_what_is_counted(
    strategy: str, tmp_path: Path
) -> None:
    (tmp_path / "averaged.py").write_text((EXAMPLES / "cancer_torch.py").read_text() + AVERAGED)
    config = {"epochs": 8, "learningRate": 0.01, "warmupSteps": 30, "evaluateEveryEpochs": 1}
    env = {"PYTHONPATH": str(tmp_path)}
    document = trainer(tmp_path / "whole", config=config, module="averaged")
    with world(strategy, document, **env) as whole:
        assert whole.finish() == [0, 0], whole.story()
    assert whole.metrics()["accuracy"] > 0.95
    assert {metrics["others"] for metrics in evaluations(whole).values()} == {0}  # the averages of rank 0 count
    other = trainer(tmp_path / "other", config=config, module="averaged")
    with world(strategy, {**other, "config": other["config"] | proofs.SLOW}, **env) as first:
        first.wait_for_commit(20)
        first.kill(1)
        first.finish()
    second = proofs.second_attempt(strategy, other, **env)
    proofs.resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == whole.losses()
    assert {**evaluations(first), **evaluations(second)} == evaluations(whole)
    assert len(evaluations(whole)) == 8
    alone = proofs.second_attempt(strategy, document, size=1, **env)  # which evaluates what is in the checkpoint
    assert alone.losses() == {}
    assert alone.metrics() == pytest.approx(whole.metrics(), abs=1e-6)


DIES_BEFORE_ITS_VOTE = """
import os, signal

votes, all_reduce = 0, torch.distributed.all_reduce

def dying(tensor, *rest, async_op=False, **more):
    global votes
    votes += async_op
    if votes == 14 and os.environ["MUSTER_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return all_reduce(tensor, *rest, async_op=async_op, **more)

if os.environ["RANK"] == "1":
    torch.distributed.all_reduce = dying
"""


def test_a_rank_that_dies_between_the_gradients_and_the_votes_costs_no_step(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text((EXAMPLES / "cancer_torch.py").read_text() + DIES_BEFORE_ITS_VOTE)
    env = {"PYTHONPATH": str(tmp_path)}
    whole = proofs.second_attempt("DDP", trainer(None, module="dying"), **env)
    document = trainer(tmp_path / "checkpoints", module="dying", checkpoint={"everySteps": 100})
    with world("DDP", document, **env) as first:
        assert first.finish() == [20, -signal.SIGKILL], first.story()
    assert max(first.losses()) == 13
    assert [(event["step"], event["reason"]) for event in first.events("commit")] == [(13, "PeerLost")], first.story()
    second = proofs.second_attempt("DDP", document, **env)
    assert min(second.losses()) == 14
    assert {**first.losses(), **second.losses()} == whole.losses()


def evaluations(running: BareWorld) -> dict[int, dict[str, float]]:
    return {event["step"]: event["metrics"] for event in running.events("evaluation")}


@pytest.mark.parametrize(
    ("more", "expected", "place"),
    [
        ("def loss(outputs, batch): raise ValueError('bad width')", "loss failed: ValueError: bad width", True),
        ("import sys\ndef loss(outputs, batch): sys.exit(0)", "loss failed: SystemExit: 0", True),
        ("import sys\nTumours.__getitem__ = lambda *_: sys.exit(0)", "reading samples of the data set failed: SystemExit: 0", True),
        ("import sys\nnn.Linear.forward = lambda *_: sys.exit(0)", "the training code ended the process: SystemExit: 0", True),
        ("def loss(outputs, batch): return None", "loss must return a tensor; it returned a NoneType", False),
        ("def loss(outputs, batch): return 'low'", "loss must return a tensor; it returned a str", False),
        ("plain = loss\ndef loss(*given): return plain(*given).detach()", "no gradient flows back from the result of loss; compute", False),
        (
            "plain = loss\ndef loss(*given): return plain(*given).mean().item()",
            "no gradient flows back from the result of loss; compute",
            False,
        ),
    ],
)
def test_what_the_users_code_does_wrong_is_one_line_that_names_it(more: str, expected: str, place: bool, tmp_path: Path) -> None:
    text = (EXAMPLES / "cancer_torch.py").read_text()
    (tmp_path / "broken.py").write_text(f"{text}\n\n{more}\n")
    with world("DDP", trainer(None, module="broken"), size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [10], running.story()
    message = proofs.last_error(running)["message"]
    assert expected in message
    assert message.startswith(("module broken: ", "the training code ended"))
    assert ("broken.py, line" in message) == place
    assert "".join(running.output).count("Traceback (most") == place


def test_a_loss_of_nan_is_reported_as_text(tmp_path: Path) -> None:
    with world("DDP", trainer(None, config={"learningRate": 1e30, "epochs": 1, "nanLoss": "Continue"}), size=1) as running:
        assert running.finish() == [0], running.story()
    last = running.events("step")[-1]
    assert math.isnan(float(last["loss"]))
    assert json.loads(json.dumps(last))["lossHex"] == "nan"


def test_a_process_whose_supervisor_is_gone_ends() -> None:
    with world("DDP", trainer(None, config={"epochs": 1000, **proofs.SLOW}), size=1) as running:
        running.wait_for_step(2)
        running.abandon(0)
        assert running.processes[0].wait(240) == 20


def test_summaries_are_written_by_the_chief_alone_without_importing_tensorflow(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    document = trainer(tmp_path / "checkpoints", config=proofs.SLOW)
    summaries = tmp_path / "summaries"
    with world("DDP", document, MUSTER_TENSORBOARD_DIR=str(summaries)) as first:
        first.wait_for_step(27)
        for rank in (1, 0):  # at once, so that none saves its last step
            first.kill(rank)
        first.finish()
    with world("DDP", document, attempt=1, MUSTER_TENSORBOARD_DIR=str(summaries)) as second:
        assert second.finish() == [0, 0], second.story()
    assert sorted(path.suffix for path in summaries.iterdir()) == [".0000", ".0001"]  # one of each attempt
    assert all("tensorflow" not in event["libraries"] for event in second.events("fingerprint"))
    read = EventAccumulator(str(summaries))
    read.Reload()
    steps = [event.step for event in read.Scalars("loss")]
    assert steps == list(range(1, proofs.STEPS + 1))
    assert {"samples_per_second", "learning_rate", "test/accuracy"} <= set(read.Tags()["scalars"])
