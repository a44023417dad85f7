"""The descriptors that the trainer reads."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from muster.strategies.registry import STRATEGIES
from muster_contract.strategy import StrategyRuntime
from muster_contract.wire import WireError, decode, encode

RUNTIMES = [strategy.runtime for strategy in STRATEGIES.values()]


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_a_descriptor_is_unchanged_after_json(runtime: StrategyRuntime) -> None:
    assert decode(StrategyRuntime, json.loads(json.dumps(encode(runtime)))) == runtime


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_the_modules_and_names_of_a_descriptor_exist_in_the_trainer(runtime: StrategyRuntime) -> None:
    roles = [path for role in runtime.roles.values() for path in (role.program, role.evaluation)]
    for path in filter(None, [runtime.engine, runtime.collectives, *roles]):
        module, _, name = path.partition(":")
        spec = find_spec(module)
        assert spec is not None, path
        assert name in _defined_in(Path(spec.origin or "")), path


def _defined_in(module: Path) -> set[str]:
    """The names that a module defines. It is not imported, because that would import the framework."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    assigned = {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    return assigned | {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.parametrize("document", [None, [], {}, {"name": "DDP"}, {"name": "DDP", "framework": []}, {"name": "DDP", "framework": {}}])
def test_an_invalid_descriptor_is_refused(document: object) -> None:
    with pytest.raises(WireError, match=r"MUSTER_TRAINER\.strategy"):
        decode(StrategyRuntime, document, "MUSTER_TRAINER.strategy")
