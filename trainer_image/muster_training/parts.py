"""The objects that a program registers, and the state of each after the last step that is finished."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Callable
from typing import Any

from muster_contract.errors import UserError
from muster_training.trees import Packed, pack, unpack

RANDOM = "random."
"""The beginning of the names of random generators, which every program has."""


class Changed(Exception):  # noqa: N818 (the object has changed)
    """The object with this name has begun the next step."""


class Part:
    """A registered object."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value

    def keep(self) -> None:
        """Keeps the state of now: a step is finished."""
        raise NotImplementedError

    def kept(self) -> Packed:
        """The state after the last step that is finished. Raises Changed if it is not there any more."""
        raise NotImplementedError

    def now(self) -> Packed:
        raise NotImplementedError

    def restore(self, state: Packed) -> None:
        raise NotImplementedError


class Copied(Part):
    """An object whose small state is copied after each step, by a pair of functions."""

    def __init__(self, name: str, save: Callable[[], Any], restore: Callable[[Any], object], value: object = None) -> None:
        super().__init__(name, value)
        self._save, self._restore = save, restore
        self._kept = Packed()

    def keep(self) -> None:
        self._kept = pack(self._save(), self.name, copies=True)

    def kept(self) -> Packed:
        return self._kept

    def now(self) -> Packed:
        return pack(self._save(), self.name, copies=True)

    def restore(self, state: Packed) -> None:
        self._restore(unpack(state))


def parts_of(name: str, value: object) -> list[Part]:
    """The parts of a registered object: one, or those of all that an Accelerator of Accelerate has prepared. Raises UserError."""
    if type(value).__name__ != "Accelerator" or not type(value).__module__.startswith("accelerate"):
        return [part_of(name, value)]
    state: Any = value
    kinds = {"model": "_models", "optimizer": "_optimizers", "scheduler": "_schedulers", "object": "_custom_objects"}
    found = [(f"{kind} {number}", each) for kind, place in kinds.items() for number, each in enumerate(getattr(state, place))]
    if not found:
        raise UserError(f"register: {name} has prepared nothing; call {name}.prepare(model, optimizer) first")
    if state.scaler is not None:
        found.append(("scaler", state.scaler))
    return [part_of(f"{name}.{each}", prepared) for each, prepared in found]


def part_of(name: str, value: object) -> Part:
    """The part of a registered object. Raises UserError if it has no state that can be saved and restored."""
    if isinstance(value, tuple) and len(value) == 2 and all(map(callable, value)):
        return Copied(name, *value)
    if "torch" in sys.modules:
        from muster_training import tensors

        if part := tensors.recognized(name, value):
            return part
    save, restore = getattr(value, "state_dict", None), getattr(value, "load_state_dict", None)
    if callable(save) and callable(restore):
        return Copied(name, save, restore, value)
    raise UserError(
        f"register: {name} is a {type(value).__name__} without state_dict() and load_state_dict(); write a pair of functions instead, "
        f"{name}=(save, restore)"
    )


def random_parts() -> list[Part]:
    """The random generators of Python, and those of NumPy and PyTorch if the program has imported them."""
    parts: list[Part] = [Copied(f"{RANDOM}python", _python_state, _set_python_state)]
    if "numpy" in sys.modules:
        import numpy as np

        parts.append(Copied(f"{RANDOM}numpy", np.random.get_state, np.random.set_state))
    if "torch" in sys.modules:
        from muster_training import tensors

        parts.append(tensors.random_part())
    return parts


def _python_state() -> tuple[int, bytes, float | None]:
    version, numbers, following = random.getstate()
    return version, array("Q", numbers).tobytes(), following


def _set_python_state(state: tuple[int, bytes, float | None]) -> None:
    version, numbers, following = state
    random.setstate((version, tuple(array("Q", numbers)), following))
