"""The `config` of a job with its defaults, as training code receives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muster_contract.config import Key, unknown_keys, wrong_values
from muster_contract.errors import BadConfiguration


class Config(Mapping[str, Any]):
    """A job's `config` with its defaults. Read it as `config.learningRate`, `config["learningRate"]` or `config.get(...)`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"config has no key {name!r}; it has {', '.join(sorted(self._values))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def replaced(self, **values: Any) -> Config:
        """A copy with `values` for some keys."""
        return Config(self._values | values)


def read_config(values: Mapping[str, Any], keys: tuple[Key, ...], *, others_allowed: bool, where: str = "spec.trainer.config") -> Config:
    """Checks `values` against `keys` and adds defaults. Raises BadConfiguration, which names the key below `where` and a remedy."""
    by_name = {key.name: key for key in keys}
    for name, message in () if others_allowed else unknown_keys(values, by_name.values()):
        raise BadConfiguration(f"{where}.{name}: {message}")
    for name, message in wrong_values(values, keys):
        raise BadConfiguration(f"{where}.{name}: {message}")
    return Config({name: key.default for name, key in by_name.items()} | dict(values))
