"""The config, the bundled tasks, and the errors for invalid modules of a user."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster_contract.config import COMMON_KEYS
from muster_contract.errors import BadConfiguration, TrainerError, UserError
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.tasks import digits
from muster_trainer.tasks.batches import read_batch, stack
from muster_trainer.tasks.config import Config, read_config
from muster_trainer.tasks.module import load_task
from muster_trainer.training.engine import rate_share
from tests.support import descriptors

GOOD = """
import numpy as np
def build_model(config): return None
def dataset(config): return [(np.zeros(2), 1), (np.ones(2), 0)]
def loss(outputs, batch): return 0
"""


def spec(entry: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> TrainerSpec:
    return TrainerSpec.from_json(
        json.dumps({"strategy": descriptors.document(), **entry, "config": config or {}, "batch": {"globalSize": 4}})
    )


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str, name: str = "user_model") -> TrainerSpec:
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        return spec({"module": name})

    yield write
    sys.modules.pop("user_model", None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learningrate": 0.1}, "spec.trainer.config.learningrate: there is no such key; did you mean learningRate?"),
        ({"epoch": 3}, "did you mean epochs?"),
        ({"zzz": 3}, "write one of data, deterministic, epochs"),
        ({"epochs": 0}, "spec.trainer.config.epochs: a whole number of at least 1 is needed, found 0"),
        ({"epochs": True}, "spec.trainer.config.epochs"),
        ({"learningRate": float("nan")}, "spec.trainer.config.learningRate: a number above 0"),
        ({"optimizer": "sgd"}, "spec.trainer.config.optimizer: SGD or Adam or AdamW is needed, found 'sgd'"),
        ({"precision": "Float16"}, "spec.trainer.config.precision: Float32 or BFloat16 is needed"),
        ({"warmupSteps": -1}, "spec.trainer.config.warmupSteps: a whole number"),
        ({"export": "../model"}, "spec.trainer.config.export: the name of a folder (such as model), or an absolute path, is needed"),
        ({"export": "step-1"}, "spec.trainer.config.export"),
        ({"export": True}, "spec.trainer.config.export"),
        ({"hidden": []}, "spec.trainer.config.hidden: a list"),
        ({"hidden": "64"}, "spec.trainer.config.hidden: a list"),
        ({"seed": -1}, "spec.trainer.config.seed"),
        ({"deterministic": 1}, "spec.trainer.config.deterministic: true or false"),
    ],
)
def test_a_wrong_config_is_refused_with_key_and_remedy(config: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfiguration) as raised:
        read_config(config, digits.KEYS, others_allowed=False)
    assert message in str(raised.value)


def test_a_module_gets_defaults_and_its_own_keys_unchanged() -> None:
    config = read_config({"width": {"a": 1}}, COMMON_KEYS, others_allowed=True)
    assert config.epochs == config["epochs"] == 15
    assert config.width == {"a": 1}
    assert config.get("depth", 3) == 3
    with pytest.raises(AttributeError, match="'depth'"):
        _ = config.depth


def test_an_unknown_task_is_refused_with_a_list_of_tasks() -> None:
    with pytest.raises(BadConfiguration, match=r"'digit'.* digits"):
        load_task(spec({"task": "digit"}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("data/*.csv", "spec.trainer.config.data: an object with format and train is needed"),
        ({"format": "csv"}, "spec.trainer.config.data.format: TFRecord or CSV or Arrays or Parquet or Arrow is needed, found 'csv'"),
        ({"format": "CSV", "trian": "x"}, "spec.trainer.config.data.trian: there is no such key; did you mean train?"),
        ({"format": "CSV"}, "spec.trainer.config.data.train: the files to train on are needed"),
        ({"format": "CSV", "train": []}, "spec.trainer.config.data.train: a file name, a pattern"),
        ({"format": "CSV", "train": "/nowhere/*.csv"}, "spec.trainer.config.data.train: there is no file /nowhere/"),
    ],
)
def test_data_files_of_a_task_are_checked_key_by_key(data: Any, message: str) -> None:
    with pytest.raises(BadConfiguration) as refusal:
        load_task(spec({"task": "digits"}, {"data": data}))
    assert message in str(refusal.value)


def test_a_task_can_use_samples_of_files_without_a_test_set(tmp_path: Path) -> None:
    own = digits.dataset({}, "train")
    np.savez(tmp_path / "a.npz", image=own.inputs[:50], digit=own.targets[:50])
    data = {"format": "Arrays", "train": str(tmp_path / "a.npz"), "inputs": "image", "targets": "digit"}
    task = load_task(spec({"task": "digits"}, {"data": data}))
    assert (len(task.train), task.test) == (50, None)
    assert (task.train.batch([7, 3])[0] == own.inputs[[7, 3]]).all()  # type: ignore[attr-defined]


def test_the_fixed_split_of_digits_has_every_class_in_both_parts() -> None:
    train, test = digits.dataset({}, "train"), digits.dataset({}, "test")
    assert (len(train), len(test)) == (1437, 360)
    for part in (train, test):
        shares = np.bincount(part.targets, minlength=10) / len(part)
        assert shares.min() > 0.09
        assert part.inputs.dtype == np.float32
        assert (part.inputs.min(), part.inputs.max()) == (0.0, 1.0)
    whole = {image.tobytes() for image in np.concatenate([train.inputs, test.inputs])}
    assert len(whole) >= 1797 - 5  # none is in both, but for images that the source has twice


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (GOOD.replace("def loss", "def los"), BadConfiguration, "the function loss(outputs, batch) is missing"),
        (GOOD.replace("outputs, batch", "outputs"), BadConfiguration, "loss must take (outputs, batch); it is loss(outputs)"),
        (GOOD + "def schedule(step): return 1", BadConfiguration, "schedule must take (step, config); it is schedule(step)"),
        (GOOD + "metrics = 3", BadConfiguration, "metrics must take (outputs, batch)"),
        (GOOD + "def dataset(config): return []", BadConfiguration, "dataset returned no samples"),
        (GOOD + "def dataset(config): return 3", BadConfiguration, "it returned int"),
        (GOOD + "def dataset(config): return 1 / 0", UserError, "dataset failed: ZeroDivisionError: division by zero"),
        (GOOD + "import sys\ndef dataset(config): sys.exit(0)", UserError, "dataset failed: SystemExit: 0 ("),
        (GOOD + "import sys; sys.exit(0)", UserError, "cannot be imported: SystemExit: 0 ("),
        (GOOD + "import not_there", UserError, "it needs not_there, which is not installed"),
        (GOOD + "def oops(:", UserError, "cannot be imported: SyntaxError"),
        (GOOD + "raise RuntimeError('at import')", UserError, "cannot be imported: RuntimeError: at import"),
    ],
)
def test_an_invalid_module_is_named_with_its_function(  # type: ignore[no-untyped-def]
    module, text: str, error: type[TrainerError], message: str
) -> None:
    with pytest.raises(error) as raised:
        load_task(module(text))
    assert message in str(raised.value)
    assert "module user_model" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["there_is_none", "user.there_is_none", "not a name", "model.py"])
def test_a_missing_module_is_a_bad_configuration(name: str) -> None:
    with pytest.raises(BadConfiguration, match=r"trainer\.module"):
        load_task(spec({"module": name}))


def test_a_module_with_only_the_required_functions_has_no_test_set(module) -> None:  # type: ignore[no-untyped-def]
    task = load_task(module(GOOD))
    assert task.test is None
    assert task.optimizer is None
    assert task.metrics(None, None) == {}
    assert task.identity == {"spec.trainer.module": "user_model", "spec.trainer.config.seed": 0, "samples in the data set": 2}


@pytest.mark.parametrize(
    ("given", "share"), [("0.5 ** step", 0.125), ("0", 0.0), ("np.float32(0.25)", 0.25), ("config.learningRate * step", 0.15)]
)
def test_schedule_and_warm_up_multiply_the_learning_rate(module, given: str, share: float) -> None:  # type: ignore[no-untyped-def]
    task = load_task(module(f"{GOOD}\ndef schedule(step, config): return {given}\n"))
    assert task.scheduled(3) == pytest.approx(share)
    assert rate_share(task, 3) == task.scheduled(3)
    assert rate_share(replace(task, config=task.config.replaced(warmupSteps=8)), 3) == task.scheduled(3) / 2


@pytest.mark.parametrize("given", ["-0.1", "float('nan')", "float('inf')", "None", "'1'", "1j", "np.ones(2)"])
def test_a_schedule_must_return_a_finite_number_of_0_or_more(module, given: str) -> None:  # type: ignore[no-untyped-def]
    task = load_task(module(f"{GOOD}\ndef schedule(step, config): return {given}\n"))
    with pytest.raises(UserError, match=r"module user_model: schedule .*step 3"):
        task.scheduled(3)


def test_nested_samples_are_stacked(module) -> None:  # type: ignore[no-untyped-def]
    task = load_task(module(GOOD))
    inputs, targets = read_batch(task, task.train, np.array([1, 0, 1]))
    assert inputs.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert targets.tolist() == [0, 1, 0]
    nested = stack([{"a": (1, [2.0, 3.0])}, {"a": (4, [5.0, 6.0])}])
    assert nested["a"][0].tolist() == [1, 4]
    assert [column.tolist() for column in nested["a"][1]] == [[2.0, 5.0], [3.0, 6.0]]
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        stack([{"a": np.zeros(3)}, {"a": np.zeros(2)}])


def test_an_unreadable_sample_is_a_user_error_with_its_line(module) -> None:  # type: ignore[no-untyped-def]
    task = load_task(module(GOOD))
    with pytest.raises(UserError, match=r"data set .*IndexError"):
        read_batch(task, task.train, np.array([5]))


def test_a_data_set_that_ends_the_program_is_a_user_error_with_its_line(module) -> None:  # type: ignore[no-untyped-def]
    task = load_task(module(GOOD))

    class Ending:
        def __getitem__(self, index: int) -> None:
            sys.exit(0)

    with pytest.raises(UserError, match=r"data set .*SystemExit: 0 \(.*test_tasks.py, line \d+\)"):
        read_batch(task, Ending(), np.array([0]))


def test_a_replaced_config_leaves_the_original_unchanged() -> None:
    config = Config({"learningRate": 0.1})
    assert config.replaced(learningRate=0.4).learningRate == 0.4
    assert config.learningRate == 0.1
