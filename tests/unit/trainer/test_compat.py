"""Private names of a framework are used in its compat module only, so that a new release breaks one file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import muster_trainer

PACKAGES = Path(muster_trainer.__file__).parent


@pytest.mark.parametrize("package", ["jax", "pytorch", "tensorflow"])
def test_only_compat_uses_private_names(package: str) -> None:
    folder = PACKAGES / package
    modules = set(folder.glob("*.py")) - {folder / "compat.py"}
    assert modules
    for path in modules:
        private = [name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node) if re.match(r"_[a-z]", name)]
        assert not private, f"{package}/{path.name} uses private names: {private}"


def _names(node: ast.AST) -> list[str]:
    """The names of others that a node of a module uses."""
    if isinstance(node, ast.ImportFrom):
        return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    if isinstance(node, ast.Attribute):
        return [] if _is_own(node.value) else [node.attr]
    return [node.arg or ""] if isinstance(node, ast.keyword) else []


def _is_own(value: ast.expr) -> bool:
    """Whether this is `self`, `cls` or `super()`, whose private names are those of the package."""
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")
