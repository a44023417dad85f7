"""The user's script or command as words that can be started, with the checks that give a better message than the failed start would."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster_contract.environment import LARGE_VARIABLES, expanded
from muster_contract.errors import BadConfiguration
from muster_contract.large_variables import unpack
from muster_contract.trainer_spec import TrainerSpec


def command_words(command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words of `trainer.command`. `$(NAME)` is replaced by the variable, as Kubernetes does in pods. Raises BadConfiguration if the
    program cannot be started."""
    _check_lengths(environ)
    words = tuple(expanded(word, environ) for word in command)
    _check_program(words[0], environ)
    return words


def script_words(script: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words of `trainer.script`, without the interpreter. Raises BadConfiguration if there are none."""
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise BadConfiguration(f"spec.trainer.script: {script!r} cannot be split into words: {error}") from None
    if not words:
        raise BadConfiguration("spec.trainer.script: it is blank; write the path of a Python program")
    return tuple(expanded(word, environ) for word in words)


def program_words(spec: TrainerSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words of the user's script or command, for a role's program that starts it. A script runs in this Python. Raises
    BadConfiguration if it cannot be started."""
    if spec.command is not None:
        return command_words(spec.command, environ)
    if spec.script is None:
        raise BadConfiguration(f"spec.trainer.{spec.entry_point}: {spec.strategy.name} runs a program of your own; write script or command")
    words = script_words(spec.script, environ)
    check_script(Path(words[0]), parses=True)
    return (sys.executable, *words)


def check_script(path: Path, *, parses: bool) -> None:
    """Raises BadConfiguration if a script is missing. Otherwise each process would fail with a traceback. With `parses`, also if it has
    another syntax than that of this Python."""
    if not path.is_file():
        raise BadConfiguration(f"spec.trainer.script: there is no file {path} (the working directory is {Path.cwd()})")
    try:
        source = path.read_bytes()
        if path.suffix == ".py" and parses:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(source, str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise BadConfiguration(f"spec.trainer.script: {path} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise BadConfiguration(f"spec.trainer.script: {where}: {error.msg}") from None
    except ValueError as error:
        raise BadConfiguration(f"spec.trainer.script: {path} is not Python source: {error}") from None


def _check_program(program: str, environ: Mapping[str, str]) -> None:
    if shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
        if Path(program).is_file() and os.sep in program:
            raise BadConfiguration(
                f"spec.trainer.command: the file {program!r} may not be executed; give it the permission (chmod +x), or name its "
                "interpreter first"
            )
        raise BadConfiguration(
            f"spec.trainer.command: the program {program!r} is not found or not executable in this image; "
            "write a program on PATH or the path of one"
        )


def _check_lengths(environ: Mapping[str, str]) -> None:
    if LARGE_VARIABLES in environ:
        names = ", ".join(sorted(set(unpack(environ)) - set(environ)))
        raise BadConfiguration(f"spec.trainer.command: Linux starts no program with a variable as long as {names}; write script instead")
