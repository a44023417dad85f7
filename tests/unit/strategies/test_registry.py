"""Descriptors of other packages. An invalid one is left out with its reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from muster.strategies.base import RoleRule, Strategy
from muster.strategies.registry import BUILT_IN, GROUP, load
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime

RUNTIME = StrategyRuntime("Own", Framework("Own", package="own"))
ROLES = {"driver": RoleRule(decides_success=True, ports={"own": 7070}), "worker": RoleRule()}
OWN = Strategy(runtime=RUNTIME, roles=ROLES, data_parallel=lambda spec: 1)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"runtime": None}, "runtime is a NoneType"),
    ({"runtime": replace(RUNTIME, framework=cast(Any, None))}, "runtime"),
    ({"runtime": replace(RUNTIME, name="my-own")}, "'my-own'"),
    ({"runtime": replace(RUNTIME, name="DDP")}, "another strategy DDP"),
    ({"runtime": replace(RUNTIME, engine=cast(Any, 7))}, "runtime.engine"),
    ({"runtime": replace(RUNTIME, roles={"server": RoleRuntime()})}, "runtime.roles has 'server'"),
    ({"reserved": None}, "reserved must be"),
    ({"reserved": "OWN"}, "reserved"),
    ({"roles": None}, "roles must be a mapping of names to RoleRule, not None"),
    ({"roles": {"driver": None}}, "roles must be a mapping of names to RoleRule"),
    ({"elastic": True}, "an elastic job has only the role worker: write default=0 for driver"),
    ({"options": frozenset({"speed"})}, "options must be a set of names of options (loop"),
    ({"communications": frozenset({"NCCL?"})}, "communications must be a set"),
    ({"data_parallel": 4}, "data_parallel is 4; write a function (spec)"),
    ({"environment": lambda spec: {}}, "environment cannot be called with 4 arguments"),
    ({"environment": None}, "environment is None; write a function (spec, plan, replica, addresses)"),
    ({"objects": list}, "objects cannot be called with 3 arguments"),
    ({"placement": lambda spec: None}, "placement cannot be called with 2 arguments"),
    ({"is_synchronous": True}, "is_synchronous is True; write a function (spec)"),
    ({"checks": [print]}, "checks must be a tuple of functions (strategy, spec)"),
    ({"checks": (lambda spec: [],)}, "checks[0] cannot be called with 2 arguments"),
    ({"reserved": frozenset({7})}, "reserved"),
    ({"first_ports": ["x"]}, "ports must be"),
    ({"first_ports": {"torchrun": 7071}}, "torchrun is 7071"),
    ({"first_ports": {"own": 7071}}, "own is 7070 and 7071"),
    ({"first_ports": {"other": 7070}}, "same number"),
]
BAD_DRIVER: list[tuple[dict[str, Any], str]] = [
    ({"ports": ["x"]}, "ports must be"),
    ({"ports": None}, "ports must be"),
    ({"ports": {"a_b": 7070}}, "'a_b'"),
    ({"ports": {"a-name-of-16-char": 7070}}, "'a-name-of-16-char'"),
    ({"ports": {"own": 80}}, "80"),
    ({"ports": {"own": 65500}}, "65500"),
    ({"ports": {"own": "7070"}}, "'7070'"),
    ({"minimum": 0}, "minimum is 0"),
    ({"minimum": 3, "maximum": 2}, "minimum is 3"),
    ({"default": 2, "maximum": 1}, "default is 2"),
    ({"minimum": 2}, "default is 1"),
    ({"restarts_with": frozenset({"nobody"})}, "restarts_with has 'nobody'"),
    ({"slots": True, "single_process": True}, "both slots and single_process"),
]
BAD_NAMES = ["", "Driver", "driver_", "driverof13cha", "b-c"]


def own(**changes: Any) -> Strategy:
    """OWN with changes that its dataclass does not refuse."""
    changed = replace(OWN)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


def loaded(monkeypatch: pytest.MonkeyPatch, strategy: object) -> tuple[set[str], list[str]]:
    module = ModuleType("own_package")
    vars(module)["OWN"] = strategy
    monkeypatch.setitem(sys.modules, "own_package", module)
    strategies, refused = load([EntryPoint("Own", "own_package:OWN", GROUP)])
    return set(strategies) - {each.name for each in BUILT_IN}, refused


def test_a_good_descriptor_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, OWN) == ({"Own"}, [])


@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_a_bad_field_leaves_the_strategy_out(changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added, [refused] = loaded(monkeypatch, own(**changes))
    assert not added
    assert reason in refused


@pytest.mark.parametrize(("changes", "reason"), BAD_DRIVER)
def test_a_bad_rule_of_a_role_leaves_the_strategy_out(changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added, [refused] = loaded(monkeypatch, own(roles={**ROLES, "driver": replace(ROLES["driver"], **changes)}))
    assert not added
    assert reason in refused


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (RoleRule(decides_success=True, in_world=False), "outside the world, so its failure would not count; write in_world=True"),
        (RoleRule(decides_success=True, default=0), "every job has it"),
    ],
)
def test_a_role_that_decides_success_counts(rule: RoleRule, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(OWN, roles={**ROLES, "driver": rule})


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_of_a_role_leaves_the_strategy_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added, [refused] = loaded(monkeypatch, own(roles={**ROLES, name: RoleRule()}))
    assert not added
    assert f"role {name!r}" in refused


def test_too_many_roles_leave_the_strategy_out(monkeypatch: pytest.MonkeyPatch) -> None:
    added, [refused] = loaded(monkeypatch, own(roles={**ROLES, **{f"role{number}": RoleRule() for number in range(7)}}))
    assert not added
    assert "9 roles" in refused


@pytest.mark.parametrize("statement", ["import sys; sys.exit(0)", "raise GeneratorExit", "raise ValueError('bad')", "import own_missing"])
def test_a_module_that_raises_or_exits_leaves_the_strategy_out(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    strategies, [refused] = load([EntryPoint("Own", "own_module:OWN", GROUP)])
    assert set(strategies) == {each.name for each in BUILT_IN}
    assert "strategy Own (own_module:OWN) cannot be loaded" in refused


def test_an_interrupt_from_the_keyboard_ends_the_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load([EntryPoint("Own", "own_module:OWN", GROUP)])


def test_the_built_in_descriptors_pass_the_same_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for strategy in BUILT_IN:
        copy = replace(strategy, runtime=replace(strategy.runtime, name="Copy"))
        assert loaded(monkeypatch, copy) == ({"Copy"}, [])
