"""Commands with deadlines. Nothing of the harness starts a process in another way, save the daemons in `engine` and `apiserver`."""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import CommandFailedError, MissingError

LAST_LINES = 30


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
        timeout: seconds after which it is killed.
        env: variables on top of this process's own.
        cwd: where it runs.
        stdin: what it reads; nothing by default.
        log: a file that gets both output streams instead; the return value is then empty.

    Raises:
        CommandFailedError: it ended with an error or did not end in time; the last lines of its output are in the message.
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


def succeeds(command: Sequence[str | Path], timeout: float, *, env: Mapping[str, str] | None = None) -> bool:
    """Whether a command exists and ends with 0 in time."""
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
