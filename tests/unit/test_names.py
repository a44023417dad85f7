"""The names of tests are short and in plain English. Each package has a sentence about its subject."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
FOLDERS = (
    *("channel", "control", "kubernetes", "operator", "lifecycle", "local", "trainer", "client", "training_library", "strategies"),
    *("render", "admission", "api", "contract", "explain", "tools"),
)
OTHERS = (ROOT / "tests" / "apiserver", ROOT / "tests" / "property")
FILES = sorted(
    [
        *UNIT.glob("test_*.py"),
        *(file for folder in FOLDERS for file in (UNIT / folder).rglob("test_*.py")),
        *(file for folder in OTHERS for file in folder.glob("test_*.py")),
    ]
)
LONGEST_NAME = 80
PACKAGES = ("contract", "operator", "trainer_image", "local_cluster")
AVOIDED = frozenset({"who", "whom", "whoever", "whatever", "nobody", "told", "said", "heard", "anew"})


def faults(source: str, place: str) -> list[str]:
    """The names of tests that are too long or have an avoided word, each with its file and line."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    listed = []
    for node in sorted(functions, key=lambda node: node.lineno):
        if not node.name.startswith("test_"):
            continue
        avoided = sorted(AVOIDED & set(node.name.split("_")))
        if len(node.name) > LONGEST_NAME:
            listed.append(f"{place}:{node.lineno}: {node.name}: {len(node.name)} characters; write at most {LONGEST_NAME}")
        if avoided:
            listed.append(f"{place}:{node.lineno}: {node.name}: has {', '.join(avoided)}; write a plain sentence")
    return listed


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_has_tests(folder: str) -> None:
    assert any(file.is_relative_to(UNIT / folder) for file in FILES)


def test_each_package_has_a_docstring() -> None:
    packages = [file for top in PACKAGES for file in sorted((ROOT / top).rglob("__init__.py"))]
    assert [str(file.relative_to(ROOT)) for file in packages if not ast.get_docstring(ast.parse(file.read_text()))] == []


def test_names_of_tests_are_short_and_plain() -> None:
    assert [fault for file in FILES for fault in faults(file.read_text(), str(file.relative_to(ROOT)))] == []


def test_a_long_name_and_an_avoided_word_are_faults_with_file_and_line() -> None:
    long = f"test_{'a' * LONGEST_NAME}"
    source = f"def test_a_whole_word() -> None: ...\n\nasync def {long}() -> None: ...\n\nclass A:\n    def test_it_is_told(self): ...\n"
    assert faults(source, "a.py") == [
        f"a.py:3: {long}: 85 characters; write at most 80",
        "a.py:6: test_it_is_told: has told; write a plain sentence",
    ]
