"""The strategies there are. To add one, write its module and name it here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from muster.api.spec import StrategyName
from muster.strategies.base import Strategy
from muster.strategies.parameter_server import PARAMETER_SERVER
from muster.strategies.tensorflow import CENTRAL_STORAGE, MIRRORED, MULTI_WORKER_MIRRORED, ONE_DEVICE
from muster.strategies.torchrun import DDP, FSDP, PIPELINE, RPC, TENSOR_PARALLEL
from muster.strategies.tpu import TPU

_ALL: tuple[Strategy, ...] = (
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
)

STRATEGIES: Mapping[StrategyName, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _ALL})


def strategy_of(name: StrategyName) -> Strategy:
    """The strategy of that name; the registry has one for each."""
    return STRATEGIES[name]
