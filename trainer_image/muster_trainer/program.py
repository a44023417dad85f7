"""Programs of users in a fork of the warm parent: the imports that a program begins with, and its run in a process that has done them."""

from __future__ import annotations

import ast
import atexit
import importlib
import os
import random
import runpy
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from muster_contract.text import text_of
from muster_trainer.host.waiting import numeric

Names = tuple[str, tuple[str, ...]]
"""A module, and the names that are imported from it."""


def imports_of(path: Path, seen: set[Path] | None = None) -> list[Names]:
    """The imports at the beginning of a program, in their order. Modules of the program's own folder are read, and not listed, because
    importing them could run its code. Imports inside functions are left out, because they may never run."""
    seen = set() if seen is None else seen
    seen.add(path)
    found: list[Names] = []
    for module, names in _imports(ast.parse(path.read_bytes()).body):
        folder = Path(path.parent, *module.split("."))
        own = [file for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file()]
        for file in own:
            found += imports_of(file, seen) if file not in seen else []
        if not own and not Path(path.parent, module.partition(".")[0]).is_dir():
            found.append((module, names))
    return found


def uses(path: Path, package: str) -> bool:
    """Whether a program begins with an import from this package. False if it is no program."""
    try:
        return any(module.partition(".")[0] == package for module, _ in imports_of(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False


def _imports(body: Iterable[ast.stmt]) -> Iterator[Names]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from ((each.name, ()) for each in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module, tuple(each.name for each in names if each.name != "*")
            case ast.If() | ast.Try() | ast.With():
                parts = (getattr(statement, part, []) for part in ("body", "orelse", "finalbody"))
                for part in parts:
                    yield from _imports(part)


def import_all(names: Iterable[Names]) -> dict[str, str]:
    """Imports modules, and what a program imports from them. What cannot be imported is left to the program.

    Returns the errors by the names of modules."""
    errors = {}
    for module, attributes in names:
        try:
            imported = importlib.import_module(module)
            for each in attributes:
                if not hasattr(imported, each):  # a module that is not imported yet
                    importlib.import_module(f"{module}.{each}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a module can raise anything)
            errors[module] = f"{type(error).__name__}: {text_of(error)}"
    return errors


def run(arguments: list[str]) -> NoReturn:
    """Runs a program as `python PROGRAM ARGUMENT...` does, in this process, and ends it."""
    sys.argv[:] = arguments
    sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
    _seed()
    if host := os.environ.get("MASTER_ADDR"):
        os.environ["MASTER_ADDR"] = numeric(host)
    code = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        code = _code_of(error)
    except Exception as error:  # noqa: BLE001 (the program can raise anything)
        error.__traceback__ = _own_frames(error.__traceback__, arguments[0])
        sys.last_value = error  # as Python does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    _end(code)


def _code_of(error: SystemExit) -> int:
    """The exit code, as Python understands the argument of `sys.exit`."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _end(code: int) -> NoReturn:
    """Waits for threads, and calls the functions of `atexit`, as Python does. Then ends the process at once: to destroy all modules takes
    Python long, above all in a fork, which copies each page that it frees. `multiprocessing` ends its processes in this way too."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the program may have closed or replaced it
                stream.flush()
        os._exit(code)


def _seed() -> None:
    """Seeds the random generators as in a new process. Otherwise all forks would draw the same numbers."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _own_frames(trace: TracebackType | None, program: str) -> TracebackType | None:
    """The frames from the program on; all of them if it has none."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != program:
        own = own.tb_next
    return own or trace
