"""The descriptors that the operator sends in MUSTER_TRAINER under `strategy`, for tests that start the trainer without an operator."""

from __future__ import annotations

from typing import Any

from muster.strategies.registry import strategy_of
from muster_contract.strategy import StrategyRuntime
from muster_contract.wire import encode


def runtime(strategy: str = "DDP") -> StrategyRuntime:
    """The descriptor of a built-in strategy."""
    return strategy_of(strategy).runtime


def document(strategy: str = "DDP") -> dict[str, Any]:
    """The same as JSON."""
    return encode(runtime(strategy))
