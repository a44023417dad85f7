"""Loads the task of a job: a bundled task, or a module of the user.

`module: my_package.model` names a Python module on the Python path, which includes the working directory and the job's
code. docs/tasks/own-model.md explains its functions. They are the same for all frameworks.
A bundled task is also a module, but with a typed config.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from muster_contract.config import COMMON_KEYS
from muster_contract.errors import BadConfiguration, TrainerError, UserError
from muster_contract.tasks import no_task
from muster_contract.text import text_of
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import DataSet
from muster_trainer.data.files.cache import cached
from muster_trainer.host.framework import module_of
from muster_trainer.tasks import digits, gpt, recommender, skewed
from muster_trainer.tasks.config import Config, read_config
from muster_trainer.tasks.files import dataset_in_files

BUNDLED = {"digits": digits, "gpt": gpt, "recommender": recommender, "skewed": skewed}


@dataclass(frozen=True)
class Task:
    """A task. `test` is None if there is no test set. `optimizer` is None if the config chooses it. `identity` has the settings
    that a checkpoint must share with the job, by the names of the job's fields."""

    title: str
    config: Config
    train: DataSet
    test: DataSet | None
    build_model: Callable[[Config], Any]
    loss: Callable[[Any, Any], Any]
    metrics: Callable[[Any, Any], Mapping[str, Any]]
    optimizer: Callable[[Any, Config], Any] | None
    identity: Mapping[str, Any]
    tensor_parallel_plan: Callable[[Any], Mapping[str, Any]] | None = None
    schedule: Callable[[int, Config], float] | None = None
    survives: bool = False
    """Whether a process may continue in another world after the loss of a peer."""
    is_checked: bool = True
    """Whether loss and metrics are checked (see `averages.check`). The bundled tasks need no check."""

    def scheduled(self, step: int) -> float:
        """The factor of the learning rate at `step` (from 0), by the task's schedule. Raises UserError."""
        if self.schedule is None:
            return 1.0
        share = self.schedule(step, self.config)
        if not isinstance(share, numbers.Real) or not 0 <= share < math.inf:
            raise UserError(
                f"{self.title}: schedule must return a factor of the learning rate, 0 or more; for step {step} it returned {share!r}"
            )
        return float(share)

    def weights_for(self, values: Any, batch: Any) -> Any:
        """The weights of the samples of `batch`, shape (n,), for multiplication with the losses `values`. Raises UserError."""
        if len(getattr(values, "shape", ())) != 1:
            raise UserError(f"{self.title}: the data set has weights of samples, so loss must return a value per sample, shape (n,)")
        if values.shape != batch[2].shape:
            raise UserError(f"{self.title}: the weight of a sample must be one number; a batch of {values.shape} has {batch[2].shape}")
        return batch[2]


def load_task(spec: TrainerSpec) -> Task:
    """The task or module of a job. Raises BadConfiguration or UserError, which name the module and the function."""
    if spec.task is not None:
        if spec.task not in BUNDLED:
            raise BadConfiguration(f"spec.trainer.task: {no_task(spec.task)}")
        bundled = BUNDLED[spec.task]
        config = read_config(spec.config, bundled.KEYS, others_allowed=False)
        framework, models = spec.strategy.framework, getattr(bundled, "MODELS", spec.task)
        if find_spec(f"{module_of(framework).__name__}.{models}") is None:
            raise BadConfiguration(f"spec.trainer.task: {framework.name} has no task {spec.task}; write another task or strategy")
        module = module_of(framework, models)
        identity = {"spec.trainer.task": spec.task} | {f"spec.trainer.config.{name}": config[name] for name in bundled.IDENTITY_KEYS}
        in_files = dataset_in_files(bundled.dataset) if config.data is not None else None
        task = _task(module, f"task {spec.task}", config, identity=identity, dataset=in_files, cache=spec.input.cache, survives=True)
        return replace(task, is_checked=False)
    if spec.module is None:
        raise BadConfiguration(f"spec.trainer.{spec.entry_point} is run by the supervisor and not by a bundled strategy")
    config = read_config(spec.config, COMMON_KEYS, others_allowed=True)
    identity = {"spec.trainer.module": spec.module}
    return _task(_import(spec.module), f"module {spec.module}", config, identity=identity, cache=spec.input.cache)


def _import(name: str) -> ModuleType:
    parent = name.partition(".")[0]
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadConfiguration(f"spec.trainer.module: {name!r} is not a module name; write it as in an import: package.module")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise BadConfiguration(
                f"spec.trainer.module: there is no module {missing} (looked for {parent} in the working directory, the "
                "job's code and the installed packages); check its name, and spec.trainer.code"
            ) from error
        raise UserError(f"module {name} cannot be imported: it needs {missing}, which is not installed") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"module {name} cannot be imported: {describe(error)}") from error


def _task(
    module: ModuleType,
    title: str,
    config: Config,
    *,
    identity: Mapping[str, Any],
    cache: Path | None,
    dataset: Callable[..., Any] | None = None,
    survives: bool = False,
) -> Task:
    """The task of a module. `dataset` replaces the function of the module, if it is not None."""
    function_of = partial(_function, module, title)
    build_model, dataset, loss = function_of("build_model", 1), dataset or function_of("dataset", 2, 1), function_of("loss", 2)
    train = _dataset(title, cache, dataset(config, "train") if _accepts(dataset, 2) else dataset(config))
    test = dataset(config, "test") if _accepts(dataset, 2) else None
    return Task(
        title=title,
        config=config,
        train=train,
        test=None if test is None else _dataset(title, cache, test),
        build_model=build_model,
        loss=loss,
        metrics=function_of("metrics", 2) if hasattr(module, "metrics") else _no_metrics,
        optimizer=function_of("optimizer", 2) if hasattr(module, "optimizer") else None,
        identity={**identity, "spec.trainer.config.seed": config.seed, "samples in the data set": len(train)},
        tensor_parallel_plan=function_of("tensor_parallel_plan", 1) if hasattr(module, "tensor_parallel_plan") else None,
        schedule=function_of("schedule", 2) if hasattr(module, "schedule") else None,
        survives=survives or getattr(module, "SURVIVES", False) is True,
    )


_PARAMETERS = {
    "build_model": "(config)",
    "dataset": "(config, split)",
    "loss": "(outputs, batch)",
    "metrics": "(outputs, batch)",
    "optimizer": "(model, config)",
    "tensor_parallel_plan": "(model)",
    "schedule": "(step, config)",
}


def _function(module: ModuleType, title: str, name: str, *counts: int) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        raise BadConfiguration(f"{title}: the function {name}{_PARAMETERS[name]} is missing; define it")
    if not callable(function) or not any(_accepts(function, count) for count in counts):
        actual = inspect.signature(function) if callable(function) else f" = {function!r}"
        raise BadConfiguration(f"{title}: {name} must take {_PARAMETERS[name]}; it is {name}{actual}")

    @wraps(function)
    def named(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TrainerError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"{title}: {name} failed: {describe(error)}") from error

    return named


def _accepts(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature
        return True
    return True


def _dataset(title: str, cache: Path | None, data: Any) -> DataSet:
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise BadConfiguration(f"{title}: dataset must return an object with __len__ and __getitem__; it returned {type(data).__name__}")
    if len(data) < 1:
        raise BadConfiguration(f"{title}: dataset returned no samples")
    return data if cache is None else cached(data, cache, title=title)


def _no_metrics(outputs: Any, batch: Any) -> Mapping[str, Any]:
    return {}


def describe(error: BaseException) -> str:
    """An exception in one line, with the innermost line of the user's own code: `ValueError: bad width (model.py, line 12)`. If there is
    none, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    text = text_of(error)[:1000]
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) or not frames:
        return message
    frame = next((frame for frame in reversed(frames) if _is_own(frame.filename)), frames[-1])
    return f"{message} ({frame.filename}, line {frame.lineno})"


def _is_own(filename: str) -> bool:
    """Whether a file belongs to the user, and not to Muster, to Python or to an installed package."""
    path = Path(filename)
    return filename[:1] != "<" and not _INSTALLED.intersection(path.parts) and not any(path.is_relative_to(each) for each in _FOREIGN)


_INSTALLED = frozenset({"site-packages", "dist-packages"})
_FOREIGN = (Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1], Path(text_of.__code__.co_filename).parent)
"""Python's modules, the trainer, and the contract."""
