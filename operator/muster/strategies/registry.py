"""The strategies of this installation: those of Muster, and those of other packages.

Another package names its descriptor in the entry-point group `muster.strategies`. A descriptor that cannot be used is omitted, so that the
other strategies still work. `REFUSED` has the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from muster.api.constants import RESERVED_ENV_PREFIXES
from muster.api.spec import StrategyName
from muster.strategies import descriptors
from muster.strategies.base import Strategy
from muster.strategies.faults import guarded
from muster.strategies.jax import JAX
from muster.strategies.parameter_server import PARAMETER_SERVER
from muster.strategies.pipeline import PIPELINE
from muster.strategies.tensorflow import CENTRAL_STORAGE, MIRRORED, MULTI_WORKER_MIRRORED, ONE_DEVICE
from muster.strategies.torchrun import DDP, FSDP, RPC, TENSOR_PARALLEL
from muster.strategies.tpu import TPU

GROUP = "muster.strategies"
BUILT_IN: tuple[Strategy, ...] = (
    ONE_DEVICE,
    MIRRORED,
    CENTRAL_STORAGE,
    MULTI_WORKER_MIRRORED,
    PARAMETER_SERVER,
    TPU,
    DDP,
    FSDP,
    TENSOR_PARALLEL,
    PIPELINE,
    RPC,
    JAX,
)
"""The built-in strategies. The rules of the CRD are generated from them."""


def load(points: Iterable[EntryPoint]) -> tuple[dict[StrategyName, Strategy], list[str]]:
    """Muster's own strategies and those of the entry points, by name, and a sentence for each entry point that cannot be used."""
    strategies = {strategy.name: strategy for strategy in BUILT_IN}
    refused = []
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        try:
            strategy = point.load()
            problem = next(_problems(strategy, strategies), None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (it is the code of another package, which may also call sys.exit)
            refused.append(f"strategy {point.name} ({point.value}) cannot be loaded: {type(error).__name__}: {error}")
            continue
        if problem:
            refused.append(f"strategy {point.name} ({point.value}) is left out: {problem}")
        else:
            strategies[strategy.name] = guarded(strategy, point.dist.name if point.dist else point.value)
    return strategies, refused


def _problems(strategy: Any, others: Mapping[StrategyName, Strategy]) -> Iterator[str]:
    """The reasons why a descriptor cannot be used with the others."""
    yield from descriptors.problems(strategy)
    if strategy.name in others:
        yield f"there is another strategy {strategy.name}"
    for other in others.values():
        for name in strategy.ports.keys() & other.ports.keys():
            if strategy.ports[name] != other.ports[name]:
                yield f"its port {name} is {strategy.ports[name]}, and {other.name} has {other.ports[name]}; choose another name"


_installed, _refused = load(entry_points(group=GROUP))
STRATEGIES: Mapping[StrategyName, Strategy] = MappingProxyType(_installed)
REFUSED: tuple[str, ...] = tuple(_refused)
"""A sentence for each entry point that cannot be used."""


def strategy_of(name: StrategyName) -> Strategy:
    """The strategy of that name. Raises KeyError if it is not installed. Admission refuses such a job."""
    return STRATEGIES[name]


RESERVED_BUILT_IN = frozenset().union(*(strategy.reserved_variables for strategy in BUILT_IN))


def reserved_for(strategy: Strategy) -> frozenset[str]:
    """Variables that a user may not set in a job of this strategy. They include those of all built-in strategies, because the rules of
    the CRD do not distinguish them."""
    return RESERVED_BUILT_IN | strategy.reserved_variables


def is_reserved_env(name: str, strategy: Strategy | None = None) -> bool:
    """Whether Muster or the strategy (any strategy, if there is none) sets this environment variable, so that a user may not."""
    setting = STRATEGIES.values() if strategy is None else (strategy,)
    is_set = name in RESERVED_BUILT_IN or any(name in each.reserved_variables for each in setting)
    return is_set or name.startswith(RESERVED_ENV_PREFIXES)
