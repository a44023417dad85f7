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
def test_a_descriptor_survives_its_way_to_the_trainer(runtime: StrategyRuntime) -> None:
    assert decode(StrategyRuntime, json.loads(json.dumps(encode(runtime)))) == runtime


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_everything_that_a_descriptor_names_is_in_the_trainer(runtime: StrategyRuntime) -> None:
    roles = [path for role in runtime.roles.values() for path in (role.program, role.evaluation)]
    for path in filter(None, [runtime.engine, runtime.collectives, *roles]):
        module, _, name = path.partition(":")
        spec = find_spec(module)
        assert spec is not None, path
        assert name in _defined_in(Path(spec.origin or "")), path


def _defined_in(module: Path) -> set[str]:
    """Without importing it, because that would import the framework."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    assigned = {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    return assigned | {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.parametrize("document", [None, [], {}, {"name": "DDP"}, {"name": "DDP", "framework": []}, {"name": "DDP", "framework": {}}])
def test_what_is_no_descriptor_is_refused(document: object) -> None:
    with pytest.raises(WireError, match=r"MUSTER_TRAINER\.strategy"):
        decode(StrategyRuntime, document, "MUSTER_TRAINER.strategy")
