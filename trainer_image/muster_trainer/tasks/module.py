"""Loads the task of a job: a bundled task, or a module of the user.

`module: my_package.model` names a Python module on the path (the working directory and the job's code are on it). It
has these functions, the same for all frameworks:

    build_model(config)               torch.nn.Module, or keras.Model; called as model(inputs). JAX: an object with
                                      init(key, inputs), which gives the parameters (a nest of arrays), and
                                      apply(parameters, inputs), such as a flax.linen.Module. If apply has a parameter
                                      `key`, it gets a key for random numbers in training, and None in an evaluation
    dataset(config, split)            a map-style data set for split "train" or "test": __len__, and __getitem__(i) that
                                      gives (inputs, targets), each an array or a dict, list or tuple of arrays.
                                      Optional: batch(indices) that gives the pair for many samples at once, stacked.
                                      With (inputs, targets, weight) each sample's loss is multiplied by its weight, and
                                      the sum still divided by the number of samples (Keras' sum_over_batch_size).
                                      May give None for "test"; `dataset(config)` alone means there is no test set.
    loss(outputs, batch)              a loss per sample, shape (n,); a scalar is taken as the mean of the batch (not in
                                      JAX, which compiles for shares of one size and fills them up).
                                      `batch` is (inputs, targets), as tensors on the device, and the weights where
                                      the data set gives some: Muster multiplies by them, the loss must not.
                                      Keras: what layers add (regularisers, add_loss) is added once, whatever the world
    optimizer(model, config)          optional: a torch.optim.Optimizer, a keras Optimizer or an
                                      optax.GradientTransformation; without it the config's keys optimizer,
                                      learningRate, momentum and weightDecay make one. `config.learningRate` is scaled
                                      already as batch.learningRateScaling says
    schedule(step, config)            optional: the share of the learning rate that a step (from 0) is done with, such as
                                      0.1 ** (step // 1000); a function of the step, so that a resumed run has the same
    metrics(outputs, batch)           optional: {name: value per sample, or their mean}, averaged over the test set
    tensor_parallel_plan(model)       PyTorch, for tensor parallelism: {layer name or pattern: how it is cut up}, as
                                      Colwise, Rowwise, ColwiseGathered or a torch ParallelStyle

    SURVIVES = True                   optional, PyTorch with DDP: the process may go on after the loss of a peer, in a new process
                                      group. So the module holds no group of its own, and all state is in model and optimizer

The Pipeline strategy needs a torch.nn.Sequential of build_model, each of whose layers takes and gives one tensor.
`config` is the job's: `config.learningRate` or `config["learningRate"]`; keys of your own are passed on as they are.
Samples are chosen by Muster, a pure function of (seed, step); random numbers are seeded in each step.
A bundled task is a module too, with its config typed.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from muster_contract.config import COMMON_KEYS
from muster_contract.errors import BadConfiguration, TrainerError, UserError
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import DataSet
from muster_trainer.data.files.cache import cached
from muster_trainer.host.framework import module_of
from muster_trainer.tasks import digits, gpt, recommender, skewed
from muster_trainer.tasks.config import Config, read_config
from muster_trainer.tasks.files import DATA, dataset_in_files

BUNDLED = {"digits": digits, "gpt": gpt, "recommender": recommender, "skewed": skewed}


@dataclass(frozen=True)
class Task:
    """What is trained. `test` is None if there is no test set. `optimizer` is None if the config chooses it. `identity` has the
    settings that a checkpoint must share with the job, by the job's field names."""

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
    """Whether its process may go on in another world."""

    def scheduled(self, step: int) -> float:
        """The factor of the learning rate at `step` (from 0), by the task's schedule. Raises UserError."""
        if self.schedule is None:
            return 1.0
        share = self.schedule(step, self.config)
        if not isinstance(share, numbers.Real) or not 0 <= share < math.inf:
            raise UserError(f"{self.title}: schedule must give a share of the learning rate, 0 or more; for step {step} it gave {share!r}")
        return float(share)

    def weights_for(self, values: Any, batch: Any) -> Any:
        """The weights of the samples of `batch`, of shape (n,). The losses `values` are multiplied by them. Raises UserError."""
        if len(getattr(values, "shape", ())) != 1:
            raise UserError(f"{self.title}: the data set gives weights of samples, so loss must give a value per sample, shape (n,)")
        if values.shape != batch[2].shape:
            raise UserError(f"{self.title}: the weight of a sample must be one number; a batch of {values.shape} has {batch[2].shape}")
        return batch[2]


def load_task(spec: TrainerSpec) -> Task:
    """The task or module of a job. Raises BadConfiguration or UserError that names module and function."""
    if spec.task is not None:
        if spec.task not in BUNDLED:
            raise BadConfiguration(
                f"spec.trainer.task: there is no task {spec.task!r}; write one of {', '.join(BUNDLED)}, or module: your_module for your own"
            )
        bundled = BUNDLED[spec.task]
        config = read_config(spec.config, (*bundled.KEYS, DATA), others_allowed=False)
        framework = spec.strategy.framework
        if find_spec(f"{module_of(framework).__name__}.{spec.task}") is None:
            raise BadConfiguration(f"spec.trainer.task: {framework.name} has no task {spec.task}; write another task or strategy")
        module = module_of(framework, spec.task)
        identity = {"spec.trainer.task": spec.task} | {f"spec.trainer.config.{name}": config[name] for name in bundled.IDENTITY_KEYS}
        in_files = dataset_in_files(bundled.dataset) if config.data is not None else None
        return _task(module, f"task {spec.task}", config, identity=identity, dataset=in_files, cache=spec.input.cache, survives=True)
    if spec.module is None:
        raise BadConfiguration(f"spec.trainer.{spec.entry_point} is run by the supervisor and not by a bundled strategy")
    config = read_config(spec.config, COMMON_KEYS, others_allowed=True)
    identity = {"spec.trainer.module": spec.module}
    return _task(_import(spec.module), f"module {spec.module}", config, identity=identity, cache=spec.input.cache)


def _import(name: str) -> ModuleType:
    parent = name.partition(".")[0]
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadConfiguration(f"spec.trainer.module: {name!r} is no module name; write it as in an import: package.module")
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
    """`dataset` replaces the function of the module."""
    take = partial(_function, module, title)
    build_model, dataset, loss = take("build_model", 1), dataset or take("dataset", 2, 1), take("loss", 2)
    train = _dataset(title, cache, dataset(config, "train") if _accepts(dataset, 2) else dataset(config))
    test = dataset(config, "test") if _accepts(dataset, 2) else None
    return Task(
        title=title,
        config=config,
        train=train,
        test=None if test is None else _dataset(title, cache, test),
        build_model=build_model,
        loss=loss,
        metrics=take("metrics", 2) if hasattr(module, "metrics") else _no_metrics,
        optimizer=take("optimizer", 2) if hasattr(module, "optimizer") else None,
        identity={**identity, "spec.trainer.config.seed": config.seed, "samples in the data set": len(train)},
        tensor_parallel_plan=take("tensor_parallel_plan", 1) if hasattr(module, "tensor_parallel_plan") else None,
        schedule=take("schedule", 2) if hasattr(module, "schedule") else None,
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
    except ValueError:  # a built-in without a signature
        return True
    return True


def _dataset(title: str, cache: Path | None, data: Any) -> DataSet:
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise BadConfiguration(f"{title}: dataset must give an object with __len__ and __getitem__; it gave {type(data).__name__}")
    if len(data) < 1:
        raise BadConfiguration(f"{title}: dataset gave no samples")
    return data if cache is None else cached(data, cache, title=title)


def _no_metrics(outputs: Any, batch: Any) -> Mapping[str, Any]:
    return {}


def describe(error: BaseException) -> str:
    """An exception in one line, with the line that raised it: `ValueError: bad width (model.py, line 12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    text = " ".join(str(error).split())[:1000]
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) or not frames:
        return message
    return f"{message} ({frames[-1].filename}, line {frames[-1].lineno})"
