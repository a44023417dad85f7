"""Runs commands with deadlines, and programs until they are stopped. All processes of this package start here, except the daemons in
`engine`."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .errors import CommandFailedError, MissingError

LAST_LINES = 30
STOP_TIMEOUT = 30.0
PR_SET_PDEATHSIG = 1


def run(
    command: Sequence[str | Path],
    timeout: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | bytes | None = None,
    log: Path | None = None,
) -> str:
    """Runs a command and returns its standard output.

    Args:
        command: program and arguments.
        timeout: seconds after which the command is killed.
        env: variables in addition to those of this process.
        cwd: working directory.
        stdin: standard input. It is empty by default.
        log: a file for both output streams. The return value is then empty.

    Raises:
        CommandFailedError: the command ended with an error or not in time. The message has the last lines of its output.
        MissingError: there is no such program.
    """
    words = [str(word) for word in command]
    name = " ".join(words[:6]) + (" ..." if len(words) > 6 else "")
    with contextlib.ExitStack() as stack:
        if log is None:
            out, err = subprocess.PIPE, subprocess.PIPE
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            out, err = stack.enter_context(log.open("ab")).fileno(), subprocess.STDOUT
        try:
            done = subprocess.run(
                words,
                input=stdin.encode() if isinstance(stdin, str) else stdin or b"",
                stdout=out,
                stderr=err,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                timeout=timeout,
                check=False,
            )
        except FileNotFoundError as error:
            raise MissingError(f"{words[0]} cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise CommandFailedError(f"{name} did not end within {timeout:.0f} s", _tail(error.stderr or error.stdout, log)) from error
    if done.returncode != 0:
        raise CommandFailedError(f"{name} ended with {done.returncode}", _tail(done.stderr or done.stdout, log))
    return (done.stdout or b"").decode(errors="replace")


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program until the end of the block. `log` gets both output streams. `env` has all of its variables; by default, those of this
    process."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def die_with_parent() -> None:
    """Runs between fork and exec, so that the program ends with a test run that is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def succeeds(command: Sequence[str | Path], timeout: float, *, env: Mapping[str, str] | None = None) -> bool:
    """Whether a command exists, and ends with 0 in time."""
    try:
        run(command, timeout, env=env)
    except (CommandFailedError, MissingError):
        return False
    return True


def _tail(output: bytes | None, log: Path | None) -> str:
    if log is not None:
        output = log.read_bytes()[-20_000:]
    lines = (output or b"").decode(errors="replace").splitlines()[-LAST_LINES:]
    if log is not None:
        lines.append(f"(the whole output is in {log})")
    return "\n".join(lines)
