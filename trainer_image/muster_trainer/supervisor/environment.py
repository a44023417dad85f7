"""Which processes a replica starts, and the environment of each. Pure, but for looking at the user's files."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster_trainer.contract import BadConfiguration, ReplicaEnv, TrainerSpec


@dataclass(frozen=True)
class Launch:
    """One process to start. `rank` names it in reports and logs; its `env` is complete."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


def plan(environ: Mapping[str, str], replica: ReplicaEnv, spec: TrainerSpec) -> list[Launch]:
    """The processes of this replica, in the order of their ranks.

    Raises BadConfiguration where the script or program cannot be started or a variable is missing.
    """
    argv = _argv(environ, spec)
    if spec.command is not None:
        return [Launch(_single_rank(environ, replica), argv, dict(environ))]
    # Python buffers what goes into a pipe: the last lines before a kill would be lost, and they tell the reason.
    shared = {"PYTHONUNBUFFERED": "1", **environ}
    if replica.framework == "tensorflow":
        return [Launch(_single_rank(environ, replica), argv, shared)]
    return [Launch(int(env["RANK"]), argv, {**shared, **env}) for env in _torch_environments(environ, replica)]


def _torch_environments(environ: Mapping[str, str], replica: ReplicaEnv) -> list[dict[str, str]]:
    """What torchrun would set, per process. Source: the environment variables section of torchrun's manual."""
    count = replica.processes
    node_rank = _whole(environ, "PET_NODE_RANK")
    first = _first_rank(environ)
    world_size = _whole(environ, "WORLD_SIZE")
    if first + count > world_size:
        raise BadConfiguration(f"WORLD_SIZE: {world_size} is too small for the ranks {first} to {first + count - 1} of this replica")
    world = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": str(node_rank),
        "MASTER_ADDR": _either(environ, "MASTER_ADDR", "PET_MASTER_ADDR"),
        "MASTER_PORT": _either(environ, "MASTER_PORT", "PET_MASTER_PORT"),
    }
    return [{**world, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(count)]


def _first_rank(environ: Mapping[str, str]) -> int:
    """`MUSTER_FIRST_RANK` where the replicas of a world differ in size, else torchrun's rule for equal nodes."""
    if environ.get("MUSTER_FIRST_RANK"):
        return _whole(environ, "MUSTER_FIRST_RANK")
    return _whole(environ, "PET_NODE_RANK") * _whole(environ, "PET_NPROC_PER_NODE")


def _single_rank(environ: Mapping[str, str], replica: ReplicaEnv) -> int:
    """The number of a replica's only process: its first rank in PyTorch, else the index in its role."""
    if replica.framework == "torch" and environ.get("PET_NODE_RANK"):
        return _first_rank(environ)
    return replica.index


def _whole(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise BadConfiguration(f"{name}: a whole number is needed, found {value!r}")
    return int(value)


def _either(environ: Mapping[str, str], name: str, other: str) -> str:
    value = environ.get(name) or environ.get(other)
    if not value:
        raise BadConfiguration(f"neither {name} nor {other} is set; a PyTorch replica needs one of them")
    return value


def _argv(environ: Mapping[str, str], spec: TrainerSpec) -> tuple[str, ...]:
    if spec.command is not None:
        _check_program(spec.command[0], environ)
        return spec.command
    if spec.script is not None:
        return (sys.executable, *_script_and_arguments(spec.script))
    return (sys.executable, "-m", "muster_trainer.process")


def _check_program(program: str, environ: Mapping[str, str]) -> None:
    if shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
        raise BadConfiguration(
            f"spec.trainer.command: the program {program!r} is not found or not executable in this image; "
            "write a program on PATH or the path of one"
        )


def _script_and_arguments(script: str) -> list[str]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise BadConfiguration(f"spec.trainer.script: {script!r} cannot be split into words: {error}") from None
    if not words:
        raise BadConfiguration("spec.trainer.script: it is blank; write the path of a Python program")
    _check_script(Path(words[0]))
    return words


def _check_script(path: Path) -> None:
    """Find a script that is absent or does not parse now, not once per process with a traceback each."""
    if not path.is_file():
        raise BadConfiguration(f"spec.trainer.script: there is no file {path} (the working directory is {Path.cwd()})")
    try:
        source = path.read_bytes()
        if path.suffix == ".py":
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
