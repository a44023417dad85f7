"""Real training with MultiWorkerMirrored: workers on loopback are killed, stopped and started again."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from muster_contract.codes import ExitCode
from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world

pytestmark = pytest.mark.tensorflow
MWMS = "MultiWorkerMirrored"
EXAMPLES = Path(__file__).parents[2] / "examples" / "own-model"


AVERAGED = """
class Averages(keras.layers.BatchNormalization):
    def build(self, shape):
        super().build(shape)
        self.of = self.add_weight(name="of", shape=(1,), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.of.assign(self.of + tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32))
        outputs = super().call(inputs, training=training)
        return outputs * (1 + 0.01 * self.of) if training else outputs  # what is kept may be trained with

def build_model(config):
    global averages
    averages, layers = Averages(), keras.layers
    return keras.Sequential(
        [keras.Input((30,)), layers.Dense(32), averages, layers.ReLU(), layers.Dropout(0.1), layers.Dense(1), layers.Reshape(())]
    )

def schedule(step, config): return 0.5 + 0.5 * (step % 7)

accuracy = metrics
def metrics(outputs, batch):
    return {**accuracy(outputs, batch), "others": tf.convert_to_tensor(averages.of)[0]}
"""


def averaged(directory: Path) -> dict[str, str]:
    """The environment of processes that find the module `averaged`."""
    (directory / "averaged.py").write_text((EXAMPLES / "cancer_tensorflow.py").read_text() + AVERAGED)
    return {"PYTHONPATH": str(directory)}


def evaluations(running: BareWorld) -> dict[int, dict[str, float]]:
    return {event["step"]: event["metrics"] for event in running.events("evaluation")}


def test_a_module_of_the_user_resumes_bit_for_bit_with_dropout_running_averages_and_a_schedule(tmp_path: Path) -> None:
    config = {"epochs": 8, "learningRate": 0.01, "warmupSteps": 30, "evaluateEveryEpochs": 1}
    env = averaged(tmp_path)
    summaries = tmp_path / "summaries"
    uninterrupted = trainer(tmp_path / "whole", config=config, module="averaged")
    with world(MWMS, uninterrupted, **env, MUSTER_TENSORBOARD_DIR=str(summaries)) as whole:
        assert whole.finish() == [0, 0], whole.story()
    assert len(list(summaries.iterdir())) == 1  # of the chief alone
    assert whole.metrics()["accuracy"] > 0.95
    assert {metrics["others"] for metrics in evaluations(whole).values()} == {0}  # the averages of the chief count
    document = trainer(tmp_path / "checkpoints", config=config, module="averaged")
    with world(MWMS, {**document, "config": document["config"] | proofs.SLOW}, **env) as first:
        first.wait_for_commit(20)
        first.kill(0)
        assert first.finish() == [-signal.SIGKILL, 20], first.story()
    second = proofs.second_attempt(MWMS, document, **env)
    proofs.resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == whole.losses()
    assert {**evaluations(first), **evaluations(second)} == evaluations(whole)
    assert len(evaluations(whole)) == 8
    alone = proofs.second_attempt("OneDevice", uninterrupted, size=1, **env)  # which evaluates what is in the checkpoint
    assert alone.losses() == {}
    assert alone.metrics() == pytest.approx(whole.metrics(), abs=1e-6)


@pytest.mark.parametrize("strategy", ["Mirrored", "CentralStorage"])
@pytest.mark.parametrize("loop", ["Custom", "Fit"])
def test_the_running_averages_of_the_first_device_are_measured_and_kept(strategy: str, loop: str, tmp_path: Path) -> None:
    document = trainer(tmp_path / "checkpoints", config={"epochs": 2}, module="averaged", options={"logicalDevices": 2, "loop": loop})
    with world(strategy, document, size=1, **averaged(tmp_path)) as two:
        assert two.finish() == [0], two.story()
    assert two.metrics()["others"] == 0
    alone = proofs.second_attempt("OneDevice", {**document, "options": {}}, size=1, **averaged(tmp_path))
    assert alone.losses() == {}
    assert alone.metrics() == pytest.approx(two.metrics(), abs=1e-6)


@pytest.mark.parametrize("loop", ["Custom", "Fit"])
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("def loss(outputs, batch): sys.exit(0)", "module broken: loss failed: SystemExit: 0 ("),
        ("Tumours.__getitem__ = lambda *_: sys.exit(0)", "module broken: reading samples of the data set failed: SystemExit: 0 ("),
        ("keras.layers.Dropout.call = lambda self, values, training=False: sys.exit(0) if training else values", "SystemExit: 0 ("),
    ],
)
def test_a_program_that_ends_itself_has_not_succeeded(loop: str, more: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"import sys\n{(EXAMPLES / 'cancer_tensorflow.py').read_text()}\n\n{more}\n")
    with world("OneDevice", trainer(None, module="broken", options={"loop": loop}), size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [10], running.story()
    message = proofs.last_error(running)["message"]
    assert expected in message
    assert "broken.py, line" in message


def test_a_checkpoint_of_two_workers_is_gone_on_from_by_one_device_and_by_three(tmp_path: Path) -> None:
    whole = proofs.uninterrupted("OneDevice", {"epochs": 2}, size=1).losses()
    with world(MWMS, trainer(tmp_path / "two", config={"epochs": 1})) as first:
        assert first.finish() == [0, 0], first.story()
    for strategy, options in (("OneDevice", {}), ("Mirrored", {"logicalDevices": 3})):
        directory = shutil.copytree(tmp_path / "two", tmp_path / strategy)
        second = proofs.second_attempt(strategy, trainer(directory, config={"epochs": 2}, options=options), size=1)
        assert second.events("resumed")[0]["step"] == 23
        assert sorted(second.losses()) == list(range(24, 47))
        assert max(abs(float.fromhex(loss) - float.fromhex(whole[step])) for step, loss in second.losses().items()) < 1e-6


def test_another_model_is_refused_with_the_remedies(tmp_path: Path) -> None:
    with world(MWMS, trainer(tmp_path, config={"epochs": 1}), size=1) as first:
        assert first.finish() == [0], first.story()
    with world(MWMS, trainer(tmp_path, config={"epochs": 1, "hidden": [8]}), size=1, attempt=1) as refused:
        assert refused.finish() == [11], refused.story()
    assert proofs.last_error(refused)["reason"] == "BadConfiguration"
    assert "spec.trainer.config.hidden" in proofs.last_error(refused)["message"]


def test_a_worker_saves_its_last_step_when_it_is_ordered_to_leave_a_collective(tmp_path: Path) -> None:
    """A peer may stand still or be gone without a connection that breaks."""
    document = trainer(tmp_path, config={"stepDelaySeconds": 0.02}, checkpoint={"everySteps": 1000})
    with world(MWMS, document, takes_orders=True) as running:
        running.wait_for_step(5)
        running.kill(1, signal.SIGSTOP)
        running.order(0, leave=0)
        commit = running.wait_for_event("commit")
        code = running.processes[0].wait(60)
        done = max(event["step"] for event in running.events("step"))
        [error] = [event for event in running.events("error") if event["rank"] == 0]
    assert (commit["reason"], commit["rank"], commit["step"], code) == ("PeerLost", 0, done, ExitCode.PEER_LOST), running.story()
    assert "ordered this process to leave its world" in error["message"]
