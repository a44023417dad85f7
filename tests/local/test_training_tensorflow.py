"""MultiWorkerMirrored for real: workers on loopback, killed, stopped, and started again."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import proofs
import pytest
from worlds import trainer, world

pytestmark = pytest.mark.tensorflow
MWMS = "MultiWorkerMirrored"
EXAMPLES = Path(__file__).parents[2] / "examples" / "own-model"


def test_the_losses_of_two_and_four_workers_are_those_of_one() -> None:
    proofs.losses_do_not_depend_on_the_world(MWMS, [1, 2, 4], communication="Ring")


def test_a_worker_without_samples_still_takes_part_and_portions_change_nothing() -> None:
    # 1,437 samples in steps of 718 leave a last step of one sample for two workers
    proofs.losses_do_not_depend_on_the_world(MWMS, [1, 2], batch={"globalSize": 718, "accumulationSteps": 3})


def test_a_module_of_the_user_is_trained_and_resumes_bit_for_bit_with_its_dropout(tmp_path: Path) -> None:
    config = {"epochs": 8, "learningRate": 0.01, **proofs.SLOW}
    env = {"PYTHONPATH": str(EXAMPLES)}
    summaries = tmp_path / "summaries"
    with world(MWMS, trainer(None, config=config, module="cancer_tensorflow"), **env, MUSTER_TENSORBOARD_DIR=str(summaries)) as whole:
        assert whole.finish() == [0, 0], whole.story()
    assert len(list(summaries.iterdir())) == 1  # of the chief alone
    assert whole.metrics()["accuracy"] > 0.95
    document = trainer(tmp_path / "checkpoints", config=config, module="cancer_tensorflow")
    with world(MWMS, document, **env) as first:
        first.wait_for_commit(20)
        first.kill(0)
        assert first.finish() == [-signal.SIGKILL, 20], first.story()
    second = proofs.second_attempt(MWMS, document, **env)
    proofs.resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == whole.losses()


def test_a_checkpoint_of_two_workers_is_gone_on_from_by_one_device_and_by_three(tmp_path: Path) -> None:
    whole = proofs.uninterrupted("OneDevice", {"epochs": 2}, size=1).losses()
    with world(MWMS, trainer(tmp_path / "two", config={"epochs": 1})) as first:
        assert first.finish() == [0, 0], first.story()
    for strategy, options in (("OneDevice", {}), ("Mirrored", {"logicalDevices": 3})):
        directory = shutil.copytree(tmp_path / "two", tmp_path / strategy)
        second = proofs.second_attempt(strategy, trainer(directory, config={"epochs": 2}, options=options), size=1)
        assert second.of("resumed")[0]["step"] == 23
        assert sorted(second.losses()) == list(range(24, 47))
        assert max(abs(float.fromhex(loss) - float.fromhex(whole[step])) for step, loss in second.losses().items()) < 1e-6


def test_another_model_is_refused_with_the_remedies(tmp_path: Path) -> None:
    with world(MWMS, trainer(tmp_path, config={"epochs": 1}), size=1) as first:
        assert first.finish() == [0], first.story()
    with world(MWMS, trainer(tmp_path, config={"epochs": 1, "hidden": [8]}), size=1, attempt=1) as refused:
        assert refused.finish() == [11], refused.story()
    assert "spec.trainer.config.hidden is [8]" in proofs.last_error(refused)["message"]
