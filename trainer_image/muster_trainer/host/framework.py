"""Imports the engine and other objects that a strategy's descriptor names, from the framework's package.

A framework's package may have a module `host`, with these functions. Each may be absent:

    before_fork()      prepares this process for forks; called before the framework is imported
    unfit()            the reason why no process may be forked from this one; empty if forks are safe
    device_bytes()     the peak of the memory that this process used on its device, in bytes
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from muster_contract.environment import DEBUG
from muster_contract.errors import BadConfiguration
from muster_contract.strategy import Framework


def named(path: str, framework: Framework) -> Any:
    """The object at `path`, "package.module:name". Raises BadConfiguration if it cannot be imported."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise BadConfiguration(f"MUSTER_TRAINER.strategy: {path!r:.200} has not the form package.module:name")
    try:
        return getattr(_imported(module, framework), name)
    except AttributeError as error:
        raise BadConfiguration(f"MUSTER_TRAINER.strategy: the module {module} of this image has no {name}") from error


def module_of(framework: Framework, *name: str) -> ModuleType:
    """A module of the framework's package, or the package itself without a `name`. Raises BadConfiguration if it cannot be imported."""
    return _imported(".".join([framework.package, *name]), framework)


def hook(framework: Framework, name: str) -> Any:
    """Calls the function `name` of the package's module `host` and returns its result; None if there is no such function."""
    path = f"{framework.package}.host"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise
        return None
    return module.__dict__[name]() if name in module.__dict__ else None


def set_quiet(framework: Framework) -> None:
    """Makes the framework log less, unless MUSTER_DEBUG is 1. Call it before the framework is imported."""
    if os.environ.get(DEBUG) != "1":
        for name, value in framework.quiet_environment.items():
            os.environ.setdefault(name, value)


def _imported(module: str, framework: Framework) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise BadConfiguration(
            f"{framework.name} needs the module {module}: {error}; use a trainer image for {framework.name} that has it"
        ) from error
