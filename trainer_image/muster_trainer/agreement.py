"""What the ranks of a world tell each other beside their steps: decisions of rank 0, and what each has come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from muster_trainer.contract import PeerLost, TrainerError, error_of
from muster_trainer.engine import Engine


def agree(engine: Engine, decide: Callable[[], Any]) -> Any:
    """What rank 0 decides, on every rank; an error of rank 0 is raised on every rank too."""
    return _value(engine, engine.broadcast(_told(decide) if engine.rank == 0 else ""))


def gather(engine: Engine, work: Callable[[], Any]) -> list[Any]:
    """What each rank has come to, on every rank; the error of the first rank that has one is raised on every rank."""
    return [_value(engine, text) for text in engine.gather(_told(work))]


def leave(engine: Engine) -> None:
    """To be called by every rank before it ends: one collective more, in which nobody needs a result. A rank that went at once could
    take with it what another still reads of the collective before. Who finds a peer gone here is through as well."""
    with suppress(PeerLost):
        engine.broadcast("")


def of_all(engine: Engine, error: TrainerError) -> TrainerError:
    """`error`, which every rank raises: once all of them know of it, so that none ends with its peer's loss instead."""
    leave(engine)
    return error


def _told(work: Callable[[], Any]) -> str:
    try:
        return json.dumps({"value": work()})
    except TrainerError as error:
        return json.dumps({"code": error.code, "message": str(error)})


def _value(engine: Engine, text: str) -> Any:
    told = json.loads(text)
    if "code" in told:
        raise of_all(engine, error_of(told["code"], told["message"]))
    return told["value"]
