"""Remote calls between the ranks of the RPC strategy. A call returns a value or raises a TrainerError, without a remote traceback."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch.distributed import rpc

from muster_contract.codes import ExitCode
from muster_contract.errors import PeerLost, TrainerError, error_of
from muster_trainer.tasks.module import describe

Future = torch.futures.Future

_target: object = None
"""The object of this process whose methods other ranks call."""


def serve(target: object) -> None:
    """Lets other ranks call the methods of `target`. Call it before the world is complete, because calls may arrive after that."""
    global _target
    _target = target


def name_of(rank: int) -> str:
    return f"rank-{rank}"


def call(rank: int, method: str, *arguments: Any, **named: Any) -> Future[Any]:
    """Calls a method of the object that another rank serves."""
    future: Future[Any] = rpc.rpc_async(name_of(rank), _answer, args=(method, arguments, named))
    return future


def result_of(future: Future[Any]) -> Any:
    """The result of a remote call. Raises the TrainerError that it raised, and PeerLost if the call failed."""
    try:
        kind, value = future.wait()
    except RuntimeError as error:
        raise PeerLost(f"a remote call failed: {' '.join(str(error).split())[:500]}") from error
    if kind == "error":
        raise error_of(*value)
    return value


def call_all(ranks: list[int], method: str, *arguments: Any, **named: Any) -> list[Any]:
    """The results of the same call on several ranks at once, in their order."""
    return [result_of(future) for future in [call(rank, method, *arguments, **named) for rank in ranks]]


def _answer(method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "value", getattr(_target, method)(*arguments, **named)
    except TrainerError as error:
        return "error", (int(error.code), str(error), error.reason)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the user's code can raise anything)
        traceback.print_exc()  # the chief gets the message only
        return "error", (int(ExitCode.USER_ERROR), f"the training code failed: {describe(error)}")
