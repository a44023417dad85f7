"""Makes a program of a Python function, which runs where only its source is known."""

from __future__ import annotations

import builtins
import inspect
import json
import symtable
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from muster.api.job import TrainingJob
from muster.api.spec import Trainer
from muster.client import errors
from muster.client.code import MOST_BYTES
from muster.client.job_input import job
from muster_contract.text import printable

PROGRAM = "muster_function.py"
_HEAD = "# Written by train() of the Muster client.\nfrom __future__ import annotations\n\n"
_DEFINED = frozenset({*dir(builtins), "__name__", "__file__"})
"""Names that every program has."""


def job_of(
    function: Callable[..., object], name: str | None, arguments: Mapping[str, Any], spec: Mapping[str, Any]
) -> tuple[TrainingJob, dict[str, bytes]]:
    """The job that calls the function with these arguments in each of its processes, and its files. `spec` is as in `job_input.job`, and
    its `trainer` has no program. Without a name, the job has that of the function.

    Raises RefusedError if the function cannot run elsewhere, and InvalidJobError with all problems of the job.
    """
    program = program_of(function, arguments)
    trainer = spec.get("trainer") or Trainer()
    script = {"script": PROGRAM}
    trainer = {**trainer, **script} if isinstance(trainer, Mapping) else trainer.model_copy(update=script)
    built = job(name or function.__name__.lower().replace("_", "-"), **{**spec, "trainer": trainer})
    return built, {PROGRAM: program.encode()}


def program_of(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """The text of a Python program that calls the function. Raises RefusedError."""
    source, name = _source(function), function.__name__
    if outer := sorted(_outer_names(_HEAD + source) - {name}):
        names = printable(", ".join(outer[:8]))
        raise errors.RefusedError(
            f"{name} uses {names}, which only this program has: import or define {'it' if len(outer) == 1 else 'them'} in the function, "
            "or pass values in arguments"
        )
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise errors.RefusedError(f"arguments: {name} cannot be called with them: {error}") from None
    call = f'if __name__ == "__main__":\n    import json\n\n    {name}(**json.loads({_as_json(arguments)!r}))\n'
    program = f"{_HEAD}{source}\n\n{call}"
    if (size := len(program.encode())) > MOST_BYTES:
        raise errors.RefusedError(
            f"{name} and its arguments have {size:,} bytes, and a ConfigMap takes {MOST_BYTES:,}: "
            "put large values into a file on a volume, and pass its path"
        )
    return program


def _source(function: Callable[..., object]) -> str:
    """The definition of the function, without the indentation of its surroundings."""
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function) or function.__name__ == "<lambda>":
        raise errors.RefusedError(f"{function!r:.80} cannot be trained: write a function with def")
    try:
        source = textwrap.dedent(inspect.getsource(function))
        compile(_HEAD + source, PROGRAM, "exec")
    except (OSError, SyntaxError) as error:
        raise errors.RefusedError(
            f"the source of {function.__name__} cannot be read ({error}): define it in a file or a cell of a notebook, without magics"
        ) from None
    return source


def _outer_names(source: str) -> set[str]:
    """The names that the source uses and does not define."""
    used, defined = set[str](), set[str]()
    top = symtable.symtable(source, PROGRAM, "exec")
    for table in _tables(top):
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                (defined if table is not top and symbol.is_assigned() else used).add(symbol.get_name())
    return used - defined - _DEFINED - {"annotations"}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _as_json(arguments: Mapping[str, Any]) -> str:
    if wrong := [name for name, value in arguments.items() if not _is_plain(value)]:
        raise errors.RefusedError(
            f"arguments: {', '.join(wrong)} must have plain values: "
            "finite numbers, text, True, False, None, and lists and mappings of these"
        )
    return json.dumps(dict(arguments))


def _is_plain(value: Any) -> bool:
    """Whether JSON keeps the value. It makes lists of tuples, and text of the keys of a mapping."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
