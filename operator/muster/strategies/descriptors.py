"""Checks of the descriptor of another package, before it is used for a job."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Set

from muster.api.spec import MAX_ROLES, ROLE_NAME, ROLE_NAME_MESSAGE, Communication, Options, RoleName
from muster.strategies.base import RestartScope, RoleRule, Strategy
from muster_contract.strategy import StrategyRuntime
from muster_contract.wire import WireError, decode, encode

STRATEGY_NAME = r"[A-Za-z][A-Za-z0-9]{0,62}"
PORT_NAME = r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?"
"""The names that Kubernetes accepts for the port of a container."""
LOWEST_PORT = 1024
HIGHEST_PORT = 65435
"""An attempt may add up to 99 to a port, and no port is above 65535."""
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "environment": ("spec", "plan", "replica", "addresses"),
    "objects": ("spec", "plan", "addresses"),
    "placement": ("spec", "role"),
    "is_synchronous": ("spec",),
    "data_parallel": ("spec",),
}
"""The parts of a descriptor that are functions, with their arguments."""
CHECK = ("strategy", "spec")
RANKED = ("role",)


def problems(strategy: object) -> Iterator[str]:
    """What makes a descriptor unusable. A field of the wrong type may also raise any exception."""
    if not isinstance(strategy, Strategy):
        yield f"it is a {type(strategy).__name__}, and a muster.strategies.base.Strategy is needed"
        return
    if not isinstance(strategy.roles, Mapping) or not all(isinstance(rule, RoleRule) for rule in strategy.roles.values()):
        yield f"roles must be a mapping of names to RoleRule, not {strategy.roles!r:.200}"
        return
    yield from _runtime_problems(strategy)
    if not 1 <= len(strategy.roles) <= MAX_ROLES:
        yield f"it has {len(strategy.roles)} roles; write 1 to {MAX_ROLES}"
    for name, rule in strategy.roles.items():
        yield from _role_problems(name, rule, strategy.roles)
    yield from _port_problems(strategy)
    others = [name for name, rule in strategy.roles.items() if strategy.elastic and name != strategy.worker_role and rule.default]
    if others:
        yield f"it is elastic, and an elastic job has only the role {strategy.worker_role}: write default=0 for {', '.join(others)}"
    sets = {
        "reserved": (strategy.reserved, "names of variables", lambda name: isinstance(name, str)),
        "options": (strategy.options, f"names of options ({', '.join(Options.model_fields)})", lambda name: name in Options.model_fields),
        "communications": (strategy.communications, "values of Communication", lambda value: isinstance(value, Communication)),
    }
    for part, (values, member_kind, is_right) in sets.items():
        if not isinstance(values, Set) or not all(map(is_right, values)):
            yield f"{part} must be a set of {member_kind}, not {values!r}"
    yield from _function_problems(strategy)


def _runtime_problems(strategy: Strategy) -> Iterator[str]:
    if not isinstance(strategy.runtime, StrategyRuntime):
        yield f"runtime is a {type(strategy.runtime).__name__}, and a muster_contract.strategy.StrategyRuntime is needed"
        return
    try:
        decode(StrategyRuntime, json.loads(json.dumps(encode(strategy.runtime))), "runtime")
    except WireError as error:
        yield str(error)
        return
    if not re.fullmatch(STRATEGY_NAME, strategy.name):
        yield f"its name {strategy.name!r} must be at most 63 letters and digits, beginning with a letter"
    for name in strategy.runtime.roles.keys() - strategy.roles.keys():
        yield f"runtime.roles has {name!r}, and roles has no such role"


def _role_problems(name: RoleName, rule: RoleRule, roles: Mapping[RoleName, RoleRule]) -> Iterator[str]:
    if not re.fullmatch(ROLE_NAME, name):
        yield f"its role {name!r} must have a name of {ROLE_NAME_MESSAGE}"
    maximum = float("inf") if rule.maximum is None else rule.maximum
    if not 1 <= rule.minimum <= maximum:
        yield f"role {name}: minimum is {rule.minimum} and maximum is {rule.maximum}; write 1 <= minimum <= maximum"
    elif rule.default and not rule.minimum <= rule.default <= maximum:
        yield f"role {name}: default is {rule.default}; write 0, or a number from minimum to maximum"
    if rule.slots and rule.single_process:
        yield f"role {name}: it has both slots and single_process; write slots=True if its process starts the processes of its ranks"
    scope = rule.restarts_with
    for other in () if isinstance(scope, RestartScope) else scope - roles.keys():
        yield f"role {name}: restarts_with has {other!r}, and roles has no such role"


def _function_problems(strategy: Strategy) -> Iterator[str]:
    parts = [(name, getattr(strategy, name), arguments) for name, arguments in FUNCTIONS.items()]
    if isinstance(strategy.checks, tuple):
        parts += [(f"checks[{index}]", check, CHECK) for index, check in enumerate(strategy.checks)]
    else:
        yield f"checks must be a tuple of functions ({', '.join(CHECK)}), not {strategy.checks!r}"
    parts += [(f"ranked of role {name}", rule.ranked, RANKED) for name, rule in strategy.roles.items() if type(rule.ranked) is not bool]
    for part, function, arguments in parts:
        if part == "objects" and function is None:
            continue
        remedy = f"write a function ({', '.join(arguments)})"
        if not callable(function):
            yield f"{part} is {function!r}; {remedy}"
            continue
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            yield f"{part} cannot be called with {len(arguments)} arguments ({error}); {remedy}"
        except ValueError:  # a function written in C may have no signature
            continue


def _port_problems(strategy: Strategy) -> Iterator[str]:
    numbers: dict[str, int] = {}
    for ports in (*(rule.ports for rule in strategy.roles.values()), strategy.first_ports):
        if not isinstance(ports, Mapping):
            yield f"ports must be a mapping of names to numbers, not {ports!r}"
            return
        for name, number in ports.items():
            if not re.fullmatch(PORT_NAME, name):
                yield f"its port {name!r} must have a name of at most 15 lower-case letters, digits and single '-'"
            if type(number) is not int or not LOWEST_PORT <= number <= HIGHEST_PORT:
                yield f"its port {name} is {number!r}; write a number from {LOWEST_PORT} to {HIGHEST_PORT}"
            if numbers.setdefault(name, number) != number:
                yield f"its port {name} is {numbers[name]} and {number}; choose another name"
    if len(set(numbers.values())) < len(numbers):
        yield f"two of its ports have the same number: {numbers}"
