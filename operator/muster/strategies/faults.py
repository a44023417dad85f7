"""Errors in the functions of another package's strategy. They are reported as faults of that package, not of Muster."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import RoleName
from muster.strategies.base import ExtraObject, Placement, RoleRule, Strategy
from muster_contract.text import printable

OBJECT_NAME = r"[a-z][a-z0-9]{0,14}"
"""Has no hyphen. Otherwise object `b-c` of job `a` and object `c` of job `a-b` would have the same name."""


class StrategyFaultError(InvalidJobError):
    """A function of a strategy raised an exception, or returned a value of a wrong type."""


def guarded(strategy: Strategy, package: str) -> Strategy:
    """The strategy of a package, with functions that raise only StrategyFaultError and InvalidJobError."""

    def guard(part: str, function: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
        return partial(_call, f"strategy {strategy.name} (package {package}): {part}", function, convert)

    def objects_of(value: Any) -> list[ExtraObject]:
        extras = _objects(value)
        for extra in extras:
            if unknown := (extra.roles or frozenset()) - strategy.roles.keys():
                raise ValueError(f"object {extra.name} is for the roles {', '.join(sorted(unknown))}, and the strategy has no such role")
        return [replace(extra, data=guard(f"data of object {extra.name}", extra.data, _texts)) for extra in extras]

    def rule_of(name: RoleName, rule: RoleRule) -> RoleRule:
        return replace(rule, ranked=guard(f"ranked of role {name}", rule.ranked, bool)) if callable(rule.ranked) else rule

    return replace(
        strategy,
        roles={name: rule_of(name, rule) for name, rule in strategy.roles.items()},
        environment=guard("environment", strategy.environment, _texts),
        objects=strategy.objects and guard("objects", strategy.objects, objects_of),
        placement=guard("placement", strategy.placement, _placement),
        is_synchronous=guard("is_synchronous", strategy.is_synchronous, bool),
        data_parallel=guard("data_parallel", strategy.data_parallel, _devices),
        checks=tuple(guard(f"checks[{index}]", check, _problems) for index, check in enumerate(strategy.checks)),
    )


def _call(label: str, function: Callable[..., Any], convert: Callable[[Any], Any], *arguments: Any) -> Any:
    try:
        return convert(function(*arguments))
    except InvalidJobError:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        message = f"{label} failed: {reason:.300}{where}; this is a fault of that package"
        raise StrategyFaultError([Problem("spec.strategy", message)]) from error


def _checked(value: Any, right: bool, expected: str) -> None:
    if not right:
        raise TypeError(f"it returned {value!r:.80}, and must return {expected}")


def _texts(value: Any) -> dict[str, str]:
    right = isinstance(value, Mapping) and all(isinstance(text, str) for item in value.items() for text in item)
    _checked(value, right, "a mapping of names to texts")
    return dict(value)


def _objects(value: Any) -> list[ExtraObject]:
    right = isinstance(value, Sequence) and all(isinstance(each, ExtraObject) and callable(each.data) for each in value)
    _checked(value, right, "a list of ExtraObject")
    for each in value:
        if not re.fullmatch(OBJECT_NAME, each.name):
            raise ValueError(f"the name of object {each.name!r} must be at most 15 lower-case letters and digits, beginning with a letter")
    return list(value)


def _placement(value: Any) -> Placement:
    _checked(value, isinstance(value, Placement), "a Placement")
    placement: Placement = value
    return placement


def _devices(value: Any) -> int:
    _checked(value, type(value) is int and value >= 1, "a number of devices, at least 1")
    return int(value)


def _problems(value: Any) -> list[Problem]:
    """All problems, so that the exceptions of a generator are raised here."""
    _checked(value, isinstance(value, Iterable), "problems")
    problems = list(value)
    _checked(value, all(isinstance(problem, Problem) for problem in problems), "problems")
    return problems
