"""What the ranks of a world tell each other beside their steps: decisions of rank 0, and what each has come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from muster_trainer.contract import TrainerError, error_of
from muster_trainer.engine import Engine


def agree(engine: Engine, decide: Callable[[], Any]) -> Any:
    """What rank 0 decides, on every rank; an error of rank 0 is raised on every rank too."""
    return _value(engine.broadcast(_told(decide) if engine.rank == 0 else ""))


def gather(engine: Engine, work: Callable[[], Any]) -> list[Any]:
    """What each rank has come to, on every rank; the error of the first rank that has one is raised on every rank."""
    return [_value(text) for text in engine.gather(_told(work))]


def _told(work: Callable[[], Any]) -> str:
    try:
        return json.dumps({"value": work()})
    except TrainerError as error:
        return json.dumps({"code": error.code, "message": str(error)})


def _value(text: str) -> Any:
    told = json.loads(text)
    if "code" in told:
        raise error_of(told["code"], told["message"])
    return told["value"]
