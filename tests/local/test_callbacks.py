"""The callbacks of `muster_training` in one process: their saves at a stop, and the training after a resume."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import muster_training as muster
from muster_contract.environment import PREFIX
from muster_training import session
from tests.support.own_loops import own_environment

Enter = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Enter]:
    """Starts an attempt in this process, and returns the list of its events."""
    handler = signal.getsignal(signal.SIGTERM)

    def entered(**changed: Any) -> list[dict[str, Any]]:
        for name in [name for name in os.environ if name.startswith(PREFIX) or name in ("RANK", "WORLD_SIZE")]:
            monkeypatch.delenv(name)
        for name, value in own_environment(tmp_path / "storage", **changed).items():
            monkeypatch.setenv(name, value)
        session._session.cache_clear()
        signal.signal(signal.SIGTERM, handler)
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(session._session().sender, "send_document", lambda document: sent.append(dict(document)))
        return sent

    yield entered
    session._session.cache_clear()
    signal.signal(signal.SIGTERM, handler)


def commits(sent: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(event["step"], event["reason"]) for event in sent if event["event"] == "commit"]


# transformers


def trainer(folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    """A small Trainer of 12 steps in two epochs, which evaluates every 3 steps."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    tokens = [{"input_ids": (row := torch.arange(8) * index % 32), "labels": row} for index in range(12)]
    given = {"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 3, "max_steps": 12, "logging_steps": 2, **arguments}
    return Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)),
        args=TrainingArguments(str(folder), per_device_train_batch_size=2, use_cpu=True, disable_tqdm=True, report_to=[], **given),
        train_dataset=tokens,
        eval_dataset=tokens[:2],
        callbacks=[muster.transformers_callback(), *callbacks],
    )


@pytest.mark.torch
def test_a_trainer_that_saves_nothing_saves_at_a_stop_and_resumes_there(tmp_path: Path, enter: Enter) -> None:
    from transformers import TrainerCallback

    class AskToStop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 8:
                os.kill(os.getpid(), signal.SIGTERM)

    sent = enter()
    first = trainer(tmp_path / "first", AskToStop())
    first.train()
    assert first.state.global_step == 9
    assert commits(sent) == [(9, "Stop")]
    steps = [event for event in sent if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, 10))
    assert [event["step"] for event in steps if "loss" in event] == [2, 4, 6, 8]
    evaluations = [event["step"] for event in sent if event["event"] == "evaluation" and "eval_loss" in event["metrics"]]
    assert evaluations == [3, 6], "the one at step 9 could take longer than the grace period"
    phases = [event["phase"] for event in sent if event["event"] == "phase"]
    assert phases == ["Evaluating", "Training", "Evaluating", "Training", "Stopping"]

    sent = enter(attempt=1)
    found = muster.latest()
    assert found is not None
    second = trainer(tmp_path / "second")
    second.train(resume_from_checkpoint=str(found.folder))
    assert [(event["step"], event["committedStep"]) for event in sent if event["event"] == "resumed"] == [(9, 9)]
    assert [event["step"] for event in sent if event["event"] == "step"] == [10, 11, 12]
    assert {name for event in sent if event["event"] == "evaluation" for name in event["metrics"]} >= {"eval_loss", "train_loss"}


@pytest.mark.torch
def test_each_checkpoint_of_trainer_is_committed_once_and_the_last_one_is_final(tmp_path: Path, enter: Enter) -> None:
    sent = enter()
    trainer(tmp_path / "out", save_strategy="steps", save_steps=4, save_total_limit=1).train()
    assert commits(sent) == [(4, "Periodic"), (8, "Periodic"), (12, "Final")]
    [commit] = (tmp_path / "storage").glob("step-00000012-*")
    files = json.loads((commit / "manifest.json").read_text())["files"].keys()
    own = tmp_path / "out/checkpoint-12"
    assert files == {path.name for path in own.iterdir()} >= {"model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"}
    assert (commit / "optimizer.pt").read_bytes() == (own / "optimizer.pt").read_bytes()


@pytest.mark.torch
@pytest.mark.parametrize("argument", ["save_only_model", "enable_jit_checkpoint"])
def test_arguments_of_trainer_that_prevent_a_resume_are_refused_inside_muster(enter: Enter, argument: str) -> None:
    enter()
    arguments = SimpleNamespace(**{"save_only_model": False, "enable_jit_checkpoint": False, argument: True})
    with pytest.raises(muster.BadConfiguration, match=argument):
        muster.transformers_callback().on_train_begin(arguments, SimpleNamespace(global_step=0), None)


# Keras

PER_EPOCH, EPOCHS = 6, 3


def fit(*callbacks: Any, **arguments: Any) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Resumes a small training of 18 steps in 3 epochs. Its history and the weights at its end."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])

    def batches(step: int) -> Iterator[tuple[Any, Any]]:
        while True:
            x = np.random.default_rng(step).normal(size=(8, 4)).astype("float32")
            yield x, x.sum(axis=1, keepdims=True)
            step += 1

    found = muster.latest()
    done = found.step if found else 0
    given = {"epochs": EPOCHS, "steps_per_epoch": PER_EPOCH, "initial_epoch": done // PER_EPOCH, "verbose": 0, **arguments}
    history = model.fit(batches(done), callbacks=[muster.keras_callback(found, every_steps=4), *callbacks], **given)
    return history, [np.asarray(each) for each in model.get_weights()]


@pytest.mark.tensorflow
def test_a_fit_that_is_stopped_in_an_epoch_does_its_rest_first_and_ends_as_undisturbed(enter: Enter, tmp_path: Path) -> None:
    import keras

    places: list[tuple[int, int]] = []
    validated: list[int] = []
    validation = (np.ones((6, 4), "float32"), np.ones((6, 1), "float32"))

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        stop_at: int | None = None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch
            validated.append(0)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            places.append((self.epoch, batch))
            if len(places) == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            validated[-1] += 1

    def run(stop_at: int | None = None) -> list[np.ndarray[Any, Any]]:
        places.clear(), validated.clear()
        watch = Watch()
        watch.stop_at = stop_at
        return fit(watch, validation_data=validation, validation_batch_size=2)[1]

    sent = enter(job_uid="undisturbed")
    expected = run()
    assert places == [(epoch, batch) for epoch in range(EPOCHS) for batch in range(PER_EPOCH)]
    assert commits(sent) == [(4, "Periodic"), (8, "Periodic"), (12, "Periodic"), (16, "Periodic"), (18, "Final")]
    (tmp_path / "storage").rename(tmp_path / "calm")

    sent = enter()
    run(stop_at=9)
    assert commits(sent) == [(4, "Periodic"), (8, "Periodic"), (9, "Stop")]
    assert validated == [3, 1], "the validation after a stop ends after its first batch"

    sent = enter(attempt=1)
    weights = run()
    assert places == [(1, batch) for batch in range(3)] + [(2, batch) for batch in range(PER_EPOCH)]
    assert [event["step"] for event in sent if event["event"] == "step"] == list(range(10, 19))
    assert commits(sent)[-1] == (18, "Final")
    for value, same in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(value, same)


@pytest.mark.tensorflow
def test_a_fit_that_cannot_resume_is_refused(enter: Enter) -> None:
    enter(world=2)
    with pytest.raises(muster.BadConfiguration, match="several processes"):
        muster.keras_callback(None, every_steps=1)
    enter()
    with pytest.raises(muster.BadConfiguration, match="every_steps"):
        muster.keras_callback(None, every_steps=0)
    with pytest.raises(muster.BadConfiguration, match="steps_per_epoch"):
        fit(steps_per_epoch=None)
