"""The user's script or command as words that can be started, with the checks that give a better message than the failed start would."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster_contract.codes import SIGNAL_BASE, ExitCode
from muster_contract.environment import LARGE_VARIABLES, expanded
from muster_contract.errors import BadConfiguration
from muster_contract.large_variables import unpack
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.stopping import StopRequest

LOOK_SECONDS = 0.1
ECHO_SECONDS = 2.0
"""How long after the program's failure a server beside it may take to show that it was the cause."""


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


def run_program(words: Sequence[str], environ: Mapping[str, str], stop: StopRequest, *, check: Callable[[], None]) -> int:
    """Runs the user's program to its end, beside servers that it needs. Returns its code, or 128 and the signal that ended it.

    `check` raises if a server has ended. This ends the program, and is the cause even if the program fails first. After a request to stop,
    the program gets SIGTERM, and the result is PREEMPTED_NOT_SAVED.
    """
    program = subprocess.Popen(words, env=dict(environ), stdin=subprocess.DEVNULL)
    asked = False
    try:
        while program.poll() is None:
            check()
            if stop.requested and not asked:
                asked = True
                program.send_signal(signal.SIGTERM)
            time.sleep(LOOK_SECONDS)
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()
    if asked:
        return ExitCode.PREEMPTED_NOT_SAVED
    if program.returncode == 0:
        return ExitCode.COMPLETED
    deadline = time.monotonic() + ECHO_SECONDS
    while time.monotonic() < deadline and not stop.requested:
        check()
        time.sleep(LOOK_SECONDS)
    code = program.returncode if program.returncode > 0 else SIGNAL_BASE - program.returncode
    return ExitCode.USER_ERROR if code in set(ExitCode) else code


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
