"""Real training with JAX: processes on loopback are killed, stopped and started again."""

from __future__ import annotations

import math
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import trainer, world

pytestmark = pytest.mark.jax
EXAMPLES = Path(__file__).parents[2] / "examples" / "own-model"
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        ({"gradientClipNorm": 0.1}, {"accumulationSteps": 3}),
        pytest.param(
            *({"optimizer": "AdamW", "weightDecay": 0.01, "learningRate": 0.003, "warmupSteps": 10, "model": "cnn"}, {}),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *({"optimizer": "Adam", "weightDecay": 0.01, "learningRate": 0.003}, {"accumulationSteps": 2}),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_the_choices_of_the_config_give_the_losses_of_one_process(config: dict[str, Any], batch: dict[str, Any]) -> None:
    config = {"epochs": 1, **config}
    one = proofs.uninterrupted("JAX", config, size=1)
    assert one.losses() != proofs.uninterrupted("JAX", {"epochs": 1}, size=1).losses()
    proofs.losses_are_equal_to_a_millionth(one, proofs.uninterrupted("JAX", config, size=2, batch={"globalSize": 64, **batch}))


def test_two_processes_with_two_devices_each_have_the_losses_of_one() -> None:
    one = proofs.uninterrupted("JAX", {"epochs": 1}, size=1)
    with world("JAX", trainer(None, config={"epochs": 1}), **TWO_DEVICES) as four:
        assert four.finish() == [0, 0], four.story()
    assert four.events("fingerprint")[0]["devices"] == ["cpu", "cpu"]
    proofs.losses_are_equal_to_a_millionth(one, four)


def test_a_checkpoint_of_two_processes_is_loaded_by_three(tmp_path: Path) -> None:
    whole = proofs.uninterrupted("JAX")
    with world("JAX", trainer(tmp_path, config=proofs.SLOW)) as first:
        first.wait_for_commit(20)
        first.kill(0, signal.SIGTERM)
        assert first.finish() == [21, 21], first.story()
    (stop,) = (event for event in first.events("commit") if event["reason"] == "Stop")
    second = proofs.second_attempt("JAX", trainer(tmp_path), size=3)
    assert second.events("resumed")[0]["step"] == stop["step"] == max(first.losses())
    merged = {**first.losses(), **second.losses()}
    assert max(abs(float.fromhex(merged[step]) - float.fromhex(loss)) for step, loss in whole.losses().items()) < 1e-6


def test_bfloat16_reaches_the_target_with_parameters_in_float32(tmp_path: Path) -> None:
    with world("JAX", trainer(tmp_path, config={"precision": "BFloat16", "export": "model", "epochs": 15}), size=1) as running:
        assert running.finish() == [0], running.story()
    assert running.metrics()["accuracy"] > 0.94
    index = (max(tmp_path.glob("step-*")) / "index.json").read_text()
    assert "float32" in index
    assert "bfloat16" not in index
    assert (tmp_path / "model" / "model.safetensors").is_file()


@pytest.mark.thorough
def test_a_step_whose_loss_is_no_number_can_be_left_out(tmp_path: Path) -> None:
    more = "plain = loss\ndef loss(outputs, batch): return jnp.where(batch[0][:, 0] > 2.5, jnp.nan, plain(outputs, batch))"
    (tmp_path / "broken.py").write_text(f"{(EXAMPLES / 'cancer_jax.py').read_text()}\n\n{more}\n")
    document = trainer(None, module="broken", config={"epochs": 2, "nanLoss": "Skip"})
    with world("JAX", document, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [0, 0], running.story()
    losses = [float(event["loss"]) for event in running.events("step")]
    assert any(math.isnan(loss) for loss in losses)
    assert not all(math.isnan(loss) for loss in losses)
    assert running.metrics()["accuracy"] > 0.5


@pytest.mark.thorough
def test_a_module_of_the_user_resumes_bit_for_bit_with_dropout_and_a_schedule(tmp_path: Path) -> None:
    more = "def schedule(step, config): return 0.5 + 0.5 * (step % 7)"
    (tmp_path / "scheduled.py").write_text(f"{(EXAMPLES / 'cancer_jax.py').read_text()}\n\n{more}\n")
    config = {"epochs": 8, "learningRate": 0.01, "warmupSteps": 30, "evaluateEveryEpochs": 1, **proofs.SLOW}
    env = {"PYTHONPATH": str(tmp_path)}
    with world("JAX", trainer(tmp_path / "whole", config=config, module="scheduled"), **env) as whole:
        assert whole.finish() == [0, 0], whole.story()
    assert whole.metrics()["accuracy"] > 0.95
    other = trainer(tmp_path / "other", config=config, module="scheduled")
    with world("JAX", other, **env) as first:
        first.wait_for_commit(20)
        first.kill(1)
        first.finish()
    second = proofs.second_attempt("JAX", other, **env)
    proofs.resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == whole.losses()
    assert second.metrics() == whole.metrics()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("def loss(outputs, batch): raise ValueError('bad width')", "loss failed: ValueError: bad width"),
        ("def loss(outputs, batch): return jnp.mean(outputs)", "loss must have the shape (n,), a value per sample"),
        ("def build_model(config): return 3", "build_model must return an object with init(key, inputs) and apply(parameters, inputs)"),
        ("import sys\nNetwork.apply = lambda self, parameters, inputs: sys.exit(0)", "apply of the model failed: SystemExit: 0"),
        ("def optimizer(model, config): return 'adam'", "optimizer must return an optax.GradientTransformation; it returned str"),
        ("Tumours.__getitem__ = lambda *_: 1 / 0", "reading samples of the data set failed: ZeroDivisionError"),
    ],
)
def test_what_the_users_code_does_wrong_is_one_line_that_names_it(more: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"{(EXAMPLES / 'cancer_jax.py').read_text()}\n\n{more}\n")
    document = trainer(None, module="broken", batch={"globalSize": 64})
    with world("JAX", document, PYTHONPATH=str(tmp_path)) as running:
        codes = running.finish()
    # A rank that still joins the world when the other one ends reports that, or JAX aborts it.
    assert 10 in codes, running.story()
    assert set(codes) <= {10, 20, -signal.SIGABRT}, running.story()
    messages = [error["message"] for error in running.events("error") if error["reason"] == "UserError"]
    assert messages, running.story()
    assert all(message.startswith("module broken: ") and expected in message for message in messages)
    raises = any(word in more for word in ("raise", "sys.exit", "1 / 0"))
    assert ("Traceback (most" in "".join(running.output)) == raises


def test_a_sample_that_one_rank_cannot_read_ends_all_ranks_with_its_message(tmp_path: Path) -> None:
    more = """
import os
plain = Tumours.__getitem__
def read(self, index):
    if os.environ["JAX_PROCESS_ID"] == "1" and len(self) > 200 and index == 7: raise OSError("sector 7 is bad")
    return plain(self, index)
Tumours.__getitem__ = read
def schedule(step, config): return 1.0
"""
    (tmp_path / "broken.py").write_text(f"{(EXAMPLES / 'cancer_jax.py').read_text()}\n{more}")
    with world("JAX", trainer(None, module="broken", config={"epochs": 9}), PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [10, 10], running.story()
    assert all("sector 7 is bad" in error["message"] for error in running.events("error"))


def test_a_port_in_use_is_a_lost_peer(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with world("JAX", trainer(tmp_path), JAX_COORDINATOR_ADDRESS=address) as running:
            assert running.processes[0].wait(240) == 20, running.story()
    assert proofs.last_error(running)["reason"] == "PeerLost"
    assert address in proofs.last_error(running)["message"]
