"""Moves the clock of Muster's modules by as many seconds as the file CHAOS_CLOCK says. Every Python with this folder in PYTHONPATH runs it.

Interpreters read it at each look, so that a jump befalls all processes of a run at once. What measures durations does not move.
"""

import builtins
import datetime
import os
import time
import types
from typing import Any

_now = time.time
_file = os.environ["CHAOS_CLOCK"]


def _moved() -> float:
    with open(_file) as file:
        return _now() + float(file.read() or 0)


class _AnyDatetime(type):
    """Lets datetimes that C code has made pass as instances: pydantic makes them when it reads a job."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime.datetime)


class _Moved(datetime.datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(_moved(), tz)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: Any) -> Any:
        return handler(datetime.datetime)


def _import(name: str, globals: dict[str, Any] | None = None, *rest: Any, **named: Any) -> types.ModuleType:
    """Muster's own modules get the moved clock. Others keep the plain class: pandas crashes with a subclass of it."""
    if name == "datetime" and str((globals or {}).get("__name__")).startswith("muster"):
        return _datetime
    return _plain_import(name, globals, *rest, **named)


_datetime = types.ModuleType("datetime")
vars(_datetime).update(vars(datetime), datetime=_Moved)
_plain_import, builtins.__import__ = builtins.__import__, _import
time.time = _moved
