"""What the ranks of a world exchange beside their steps: decisions of rank 0, and results of each rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from muster_contract.errors import PeerLost, TrainerError, error_of

Result = TypeVar("Result")
"""A value that JSON can hold. What other ranks receive of a tuple is a list."""


class Ranks(Protocol):
    """The ranks of a world. Every rank calls the same methods in the same order."""

    rank: int

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank."""

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks in their order, on every rank."""


def agree(engine: Ranks, decide: Callable[[], Result]) -> Result:
    """What `decide` returns on rank 0, on every rank. If it fails, every rank raises its error."""
    result: Result = _value(engine, engine.broadcast(_outcome(decide) if engine.rank == 0 else ""))
    return result


def gather(engine: Ranks, work: Callable[[], Result]) -> list[Result]:
    """The result of `work` on each rank, on every rank. If ranks fail, every rank raises the error of the first one."""
    return [_value(engine, text) for text in engine.gather(_outcome(work))]


def leave(engine: Ranks) -> None:
    """Every rank calls this before it ends. It is one more collective, whose result nobody needs: a rank that ended at once could
    take away what another rank still reads of the collective before. A lost peer is no error here."""
    with suppress(PeerLost):
        engine.broadcast("")


def of_all(engine: Ranks, error: TrainerError) -> TrainerError:
    """`error`, which every rank raises, after all ranks know it. Otherwise a rank could end with the loss of its peer instead."""
    leave(engine)
    return error


def _outcome(work: Callable[[], object]) -> str:
    try:
        return json.dumps({"value": work()})
    except TrainerError as error:
        return json.dumps({"code": error.code, "message": str(error)})


def _value(engine: Ranks, text: str) -> Any:
    outcome = json.loads(text)
    if "code" in outcome:
        raise of_all(engine, error_of(outcome["code"], outcome["message"]))
    return outcome["value"]
