"""Agreements between the ranks of a world, apart from steps: decisions of rank 0, and results of each rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from muster_contract.errors import PeerLost, TrainerError, error_of

Result = TypeVar("Result")
"""A value that JSON can hold. Other ranks receive a tuple as a list."""


class Ranks(Protocol):
    """The ranks of a world. Every rank calls the same methods in the same order."""

    rank: int

    def broadcast(self, text: str) -> str:
        """Returns the text of rank 0, on every rank."""

    def gather(self, text: str) -> list[str]:
        """Returns the texts of all ranks in their order, on every rank."""


def agree(engine: Ranks, decide: Callable[[], Result]) -> Result:
    """Calls `decide` on rank 0, and returns its result on every rank. If it raises an error, every rank raises that error."""
    result: Result = _value(engine, engine.broadcast(_outcome(decide) if engine.rank == 0 else ""))
    return result


def gather(engine: Ranks, work: Callable[[], Result]) -> list[Result]:
    """Calls `work` on every rank, and returns the results of all ranks on every rank. If ranks fail, every rank raises the error of the
    first of them."""
    return [_value(engine, text) for text in engine.gather(_outcome(work))]


def leave(engine: Ranks) -> None:
    """Waits for the other ranks in one more collective. Every rank calls it before it ends. Without it, a rank could end while another rank
    still reads its data in the previous collective. The loss of a peer is not an error here."""
    with suppress(PeerLost):
        engine.broadcast("")


def of_all(engine: Ranks, error: TrainerError) -> TrainerError:
    """Returns `error` when all ranks have it. Every rank calls it with the error that it raises next. Without it, a rank could raise
    PeerLost because another rank has ended already."""
    leave(engine)
    return error


def _outcome(work: Callable[[], object]) -> str:
    try:
        return json.dumps({"value": work()})
    except TrainerError as error:
        return json.dumps({"code": error.code, "message": str(error), "reason": error.reason})


def _value(engine: Ranks, text: str) -> Any:
    outcome = json.loads(text)
    if "code" in outcome:
        raise of_all(engine, error_of(outcome["code"], outcome["message"], outcome.get("reason", "")))
    return outcome["value"]
