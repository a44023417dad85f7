"""Programs of users in a fork of the warm parent: what is imported before, and how a program runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster_trainer import program

PROGRAM = """
from __future__ import annotations
import json, os.path
import missing.module
from own import thing
import folder.inner
from collections import abc, OrderedDict
if True:
    import csv
try:
    import zipfile
except ImportError:
    pass
def later():
    import sqlite3
raise SystemExit("not run")
"""

AT_EXIT = """
import atexit, concurrent.futures, threading, time
atexit.register(print, "at exit")
pool = concurrent.futures.ThreadPoolExecutor()
pool.submit(lambda: (time.sleep(0.1), print("of the pool")))
threading.Thread(target=lambda: (time.sleep(0.2), print("of the thread"))).start()
"""


def test_the_imports_at_the_beginning_of_a_program_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "own.py").write_text("import bisect, train\nfrom . import x\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inner.py").write_text("import heapq\n")
    names = [name for name, _ in program.imports_of(tmp_path / "train.py")]
    assert names == ["__future__", "json", "os.path", "missing.module", "bisect", "heapq", "collections", "csv", "zipfile"]
    assert ("collections", ("abc", "OrderedDict")) in program.imports_of(tmp_path / "train.py")


def test_modules_that_cannot_be_imported_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_for_test.py").write_text("raise SystemExit(3)")
    (tmp_path / "whole_for_test").mkdir()
    (tmp_path / "whole_for_test/__init__.py").write_text("")
    (tmp_path / "whole_for_test/part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    errors = program.import_all([("broken_for_test", ()), ("missing_for_test", ()), ("whole_for_test", ("part", "nothing"))])
    assert "whole_for_test.part" in sys.modules
    assert list(errors) == ["broken_for_test", "missing_for_test", "whole_for_test"]
    assert errors["missing_for_test"] == "ModuleNotFoundError: No module named 'missing_for_test'"


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        pytest.param("import sys; print(sys.argv[1:], __name__, __file__); import beside", 0, "", id="ends"),
        pytest.param("raise SystemExit(7)", 7, "", id="exits"),
        pytest.param("import sys; sys.exit()", 0, "", id="exits with nothing"),
        pytest.param("import sys; print('first'); sys.exit('no data')", 1, "no data", id="exits with a sentence"),
        pytest.param(AT_EXIT, 0, "", id="has a thread and functions of atexit"),
        pytest.param("def f():\n    1 / 0\nf()", 1, "ZeroDivisionError: division by zero", id="fails"),
        pytest.param("1 +", 1, "SyntaxError", id="is no Python"),
    ],
)
def test_a_program_runs_and_ends_as_under_python(text: str, code: int, error: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "beside.py").write_text("")
    forked = f"from muster_trainer import program; program.run([{str(tmp_path / 'train.py')!r}, 'a b'])"
    plain = subprocess.run([sys.executable, str(tmp_path / "train.py"), "a b"], capture_output=True, text=True, check=False)
    ended = subprocess.run([sys.executable, "-P", "-c", forked], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, plain.stdout)
    assert error in ended.stderr
    if error.startswith("Zero"):
        assert ended.stderr == plain.stderr


def test_a_program_finds_the_number_of_the_address_of_rank_0(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import ipaddress, os; print(ipaddress.ip_address(os.environ['MASTER_ADDR']).is_loopback)")
    forked = f"from muster_trainer import program; program.run([{str(tmp_path / 'train.py')!r}])"
    environ = {**os.environ, "MASTER_ADDR": "localhost"}
    ended = subprocess.run([sys.executable, "-P", "-c", forked], env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
