"""The program that mpirun starts in place of ssh: `python -m muster_mpi.agent HOST COMMAND...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from muster_contract.errors import TrainerError
from muster_mpi.commands import Identity, run_remotely
from muster_mpi.names import WORLD, read

UNREACHABLE = 255
"""The exit code of ssh if it cannot connect."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command on the host, and returns its exit code, or that of ssh without a connection."""
    name, *words = arguments
    code = _run(name, " ".join(words))
    with suppress(OSError):
        _record(Path(os.environ[WORLD]), name).write_text(str(code))
    return code


def code_of(world: Path, name: str) -> int | None:
    """The exit code of the daemon of this worker. None if it is not known."""
    try:
        return int(_record(world, name).read_text())
    except (OSError, ValueError):
        return None


def _record(world: Path, name: str) -> Path:
    return world.with_name(f"{name}.code")


def _run(name: str, command: str) -> int:
    try:
        hosts, _ = read(Path(os.environ[WORLD]).read_text())
        host = next((each for each in hosts if each.name == name), None)
        if host is None:
            raise ValueError("the job has no such host")
        return run_remotely(host, Identity.from_environment(os.environ), command)
    except (OSError, ValueError, RecursionError, TrainerError) as error:
        print(f"muster: {name}: {error}", file=sys.stderr)
        return UNREACHABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
