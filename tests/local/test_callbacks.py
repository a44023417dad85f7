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
from muster_contract.reports import NodeNotice
from muster_trainer.host import node_notice
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
        for name, value in own_environment(tmp_path / "storage", state_dir=tmp_path, **changed).items():
            monkeypatch.setenv(name, value)
        session.current.cache_clear()
        signal.signal(signal.SIGTERM, handler)
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(session.current().sender, "send_document", lambda document: sent.append(dict(document)))
        return sent

    yield entered
    session.current.cache_clear()
    signal.signal(signal.SIGTERM, handler)


def commits(sent: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(event["step"], event["reason"]) for event in sent if event["event"] == "commit"]


def announce(folder: Path) -> None:
    node_notice.write(folder, NodeNotice(node="spot-1", signal="cordon", since=1.0))


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
def test_a_trainer_saves_at_a_notice_and_trains_on(tmp_path: Path, enter: Enter) -> None:
    from transformers import TrainerCallback

    class Announce(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 4:
                announce(tmp_path)

    sent = enter()
    trained = trainer(tmp_path / "out", Announce())
    trained.train()
    assert commits(sent) == [(5, "Periodic")]
    assert trained.state.global_step == 12


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
@pytest.mark.parametrize("strategy", [{"eval_steps": 3}, {"eval_strategy": "epoch"}])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_an_evaluation_that_is_due_at_a_stop_of_trainer_is_made_up_with_what_follows_from_it(
    tmp_path: Path, enter: Enter, strategy: dict[str, Any], workers: int
) -> None:
    from transformers import TrainerCallback

    class AskToStop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == at - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    def train(folder: str, *callbacks: Any, **found: Any) -> Any:
        given = {"metric_for_best_model": "loss", "greater_is_better": True, "logging_steps": 1, "dataloader_num_workers": workers}
        made = trainer(tmp_path / folder, *callbacks, **given, **strategy, save_strategy="steps", save_steps=3)
        made.train(**found)
        return made.state

    def figures(state: Any, *names: str) -> list[Any]:
        return [(entry["step"], *(entry[name] for name in names)) for entry in state.log_history if names[0] in entry]

    at = 6 if "eval_strategy" in strategy else 3
    enter(job_uid="undisturbed")
    calm = train("calm")
    (tmp_path / "storage").rename(tmp_path / "calm-storage")
    enter()
    assert train("disturbed", AskToStop()).global_step == at
    enter(attempt=1)
    found = muster.latest()
    assert found is not None
    disturbed = train("disturbed", resume_from_checkpoint=str(found.folder))
    assert figures(disturbed, "eval_loss") == figures(calm, "eval_loss")
    assert figures(disturbed, "loss", "grad_norm") == figures(calm, "loss", "grad_norm")
    assert (disturbed.best_metric, disturbed.best_global_step) == (calm.best_metric, calm.best_global_step)


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

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            judged.append("val_loss" in logs)

    judged: list[bool] = []

    def run(stop_at: int | None = None) -> list[np.ndarray[Any, Any]]:
        places.clear(), validated.clear(), judged.clear()
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
    assert judged == [True, False], "a figure of one batch must not make a model the best one"

    sent = enter(attempt=1)
    weights = run()
    assert places == [(1, batch) for batch in range(3)] + [(2, batch) for batch in range(PER_EPOCH)]
    assert [event["step"] for event in sent if event["event"] == "step"] == list(range(10, 19))
    assert commits(sent)[-1] == (18, "Final")
    for value, same in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(value, same)


@pytest.mark.tensorflow
def test_a_fit_saves_at_a_notice_and_trains_on(tmp_path: Path, enter: Enter) -> None:
    import keras

    class Announce(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                announce(tmp_path)

    sent = enter()
    fit(Announce())
    assert commits(sent) == [(4, "Periodic"), (7, "Periodic"), (8, "Periodic"), (12, "Periodic"), (16, "Periodic"), (18, "Final")]


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


# Lightning

BATCHES, BATCHES_A_STEP = 6, 2


def lightning_losses(
    folder: Path, *callbacks: Any, loader: Any, stop_at: int | None = None, **arguments: Any
) -> tuple[list[int], list[str]]:
    """Resumes a small training of three epochs with Dropout, which accumulates gradients. The steps of the
    validated batches, and the loss of each batch."""
    import lightning.pytorch as pl
    import torch

    losses: list[str] = []

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.network(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            losses.append(float(loss).hex())
            if len(losses) == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            validated.append(self.trainer.global_step)
            self.log("size", (self.network(batch) ** 2).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.05)

    validated: list[int] = []
    pl.seed_everything(0)
    given = {
        "max_epochs": 3,
        "accumulate_grad_batches": BATCHES_A_STEP,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        **arguments,
    }
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=folder,
        callbacks=[*callbacks, muster.lightning_callback(every_steps=100)],
        **given,
    )
    model = Model()
    data = torch.randn(2 * BATCHES, 4, generator=torch.Generator().manual_seed(1))
    validation = torch.utils.data.DataLoader(data[:4], batch_size=2)
    newest = muster.latest()
    trainer.fit(model, loader(data, trainer), validation, ckpt_path=newest / "lightning.ckpt" if newest else None)
    return validated, losses


def shuffled(*, noise: float = 0.1, has_generator: bool = False, **arguments: Any) -> Callable[..., Any]:
    def loader(data: Any, trainer: Any) -> Any:
        import torch

        class Noisy(torch.utils.data.Dataset[Any]):
            """Samples with noise from the generator of the process that reads them."""

            def __len__(self) -> int:
                return len(data)

            def __getitem__(self, index: int) -> Any:
                return data[index] + noise * torch.randn(4)

        own = {"generator": torch.Generator().manual_seed(7)} if has_generator else {}
        return torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True, **own, **arguments)

    return loader


LOADERS = {
    "of this process": shuffled(),
    "with a generator of its own": shuffled(has_generator=True),
    "with workers": shuffled(num_workers=2),
    "with persistent workers": shuffled(noise=0.0, num_workers=2, persistent_workers=True),
}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("stop_at", "name"),
    [(10, name) for name in LOADERS]
    + [(12, "with workers")]
    + [pytest.param(stop_at, name, marks=pytest.mark.thorough) for stop_at in (4, 12) for name in LOADERS],
)
def test_a_lightning_training_that_is_stopped_resumes_with_the_losses_of_an_undisturbed_one(
    enter: Enter, tmp_path: Path, name: str, stop_at: int
) -> None:
    enter(job_uid="undisturbed")
    _, expected = lightning_losses(tmp_path, loader=LOADERS[name])
    (tmp_path / "storage").rename(tmp_path / "calm")
    assert len(expected) == 3 * BATCHES

    sent = enter()
    _, first = lightning_losses(tmp_path, loader=LOADERS[name], stop_at=stop_at)
    assert commits(sent) == [(stop_at // BATCHES_A_STEP, "Stop")]
    enter(attempt=1)
    _, second = lightning_losses(tmp_path, loader=LOADERS[name])
    assert first == expected[:stop_at]
    assert second == expected[stop_at:]


@pytest.mark.torch
def test_a_lightning_training_saves_at_a_notice_and_trains_on(enter: Enter, tmp_path: Path) -> None:
    import lightning.pytorch as pl

    class Announce(pl.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                announce(tmp_path)

    sent = enter()
    lightning_losses(tmp_path, Announce(), loader=LOADERS["of this process"])
    assert commits(sent) == [(4, "Periodic"), (9, "Final")]


@pytest.mark.torch
def test_a_validation_that_is_due_at_a_stop_of_lightning_is_made_up_with_what_follows_from_it(enter: Enter, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    def train(**stop: Any) -> tuple[list[int], list[str], Any, Any]:
        best = ModelCheckpoint(tmp_path / "best", "{step}", monitor="size", save_top_k=1)
        patience = EarlyStopping("size", patience=100)
        given = {"loader": LOADERS["of this process"], "enable_checkpointing": True, "val_check_interval": 4, **stop}
        return *lightning_losses(tmp_path, best, patience, **given), best, patience

    enter(job_uid="undisturbed")
    validated, expected, best, patience = train()
    assert validated == [2, 2, 5, 5, 8, 8]
    (tmp_path / "storage").rename(tmp_path / "calm")
    (tmp_path / "best").rename(tmp_path / "best-calm")

    enter()
    validated, first, stopped, _ = train(stop_at=10)
    assert validated == [2, 2], "the one at step 5 could take longer than the grace period"
    assert Path(stopped.best_model_path).name == "step=2.ckpt", "an epoch that is not over is not judged"
    enter(attempt=1)
    validated, second, resumed, waited = train()
    assert validated == [5, 5, 8, 8]
    assert first + second == expected
    assert (resumed.best_model_score, waited.wait_count) == (best.best_model_score, patience.wait_count)
    assert Path(resumed.best_model_path).name == Path(best.best_model_path).name


@pytest.mark.torch
def test_a_lightning_loader_whose_place_is_unknown_is_named_and_keeps_the_place_that_it_finds_itself(
    enter: Enter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def placed(data: Any, trainer: Any) -> Any:
        import torch

        class FromStep(torch.utils.data.Sampler[int]):
            def __iter__(self) -> Iterator[int]:
                order = torch.randperm(len(data), generator=torch.Generator().manual_seed(trainer.current_epoch)).tolist()
                return iter(order[2 * (trainer.global_step * BATCHES_A_STEP % BATCHES) :])

            def __len__(self) -> int:
                return len(data)

        return torch.utils.data.DataLoader(data, batch_size=2, sampler=FromStep())

    enter(job_uid="undisturbed")
    _, expected = lightning_losses(tmp_path, loader=placed)
    (tmp_path / "storage").rename(tmp_path / "calm")
    enter()
    _, first = lightning_losses(tmp_path, loader=placed, stop_at=10)
    sent = enter(attempt=1)
    _, second = lightning_losses(tmp_path, loader=placed)
    assert first + second == expected
    [notice] = [event["message"] for event in sent if event["event"] == "notice"]
    assert "FromStep" in notice
    assert "state_dict()" in notice
    assert notice in capsys.readouterr().err


# Accelerate


@pytest.mark.torch
@pytest.mark.parametrize("stop_at", [4, 6])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_with_accelerate_that_loads_its_state_after_the_first_batch_resumes_with_the_losses_of_an_undisturbed_one(
    enter: Enter, tmp_path: Path, workers: int, stop_at: int
) -> None:
    """The loop of docs/libraries.md."""
    import torch
    from accelerate import Accelerator, utils  # type: ignore[import-untyped]

    def train(stop_at: int | None = None) -> list[str]:
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True, dataloader_config=utils.DataLoaderConfiguration(use_seedable_sampler=True))
        plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        data = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
        loaded = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, num_workers=workers)
        model, optimizer, loader = accelerator.prepare(plain, torch.optim.Adam(plain.parameters(), lr=0.05), loaded)
        losses = []
        if newest := muster.latest():
            accelerator.load_state(str(newest.folder))
        done = newest.step if newest else 0
        for epoch in range(done // len(loader), 3):
            loader.set_epoch(epoch)
            skipped = done % len(loader)
            for batch in accelerator.skip_first_batches(loader, skipped):
                if newest and skipped:
                    accelerator.load_state(str(newest.folder))
                newest = None
                optimizer.zero_grad()
                loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                losses.append(loss.item().hex())
                done += 1
                if done == stop_at:
                    with muster.checkpoint(done) as folder:
                        accelerator.save_state(str(folder))
                    return losses
        return losses

    enter(job_uid="undisturbed")
    expected = train()
    enter()
    first = train(stop_at)
    enter(attempt=1)
    assert first + train() == expected
