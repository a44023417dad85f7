"""Decides which processes a replica starts, and the environment of each. The functions are pure, except that they check the user's
files."""

from __future__ import annotations

import os
import shlex
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from muster_contract.environment import LARGE_VARIABLES, LOCAL_RANK, NAMES, RANK, REFERENCE, ReplicaEnvironment, expanded
from muster_contract.errors import BadConfiguration
from muster_contract.large_variables import LONGEST, pack, unpack
from muster_contract.strategy import Framework
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.supervisor import image

SCRIPT_RUNNER = Path(__file__).with_name("script_runner.py")


@dataclass(frozen=True)
class Launch:
    """One process to start. `rank` is its name in reports and logs. `env` is its complete environment."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    memory: int | None = None
    """The descriptor of the memory for its snapshots, if any."""


def with_world(environ: Mapping[str, str], world: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the variables of the attempt replaced by those of another attempt."""
    return {**{name: value for name, value in environ.items() if name != LARGE_VARIABLES}, **world}


def unpacked(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with plain variables, except those that are too long for any program. Raises BadConfiguration."""
    return pack(unpack(environ), above=LONGEST)


def plan(environ: Mapping[str, str], replica: ReplicaEnvironment, spec: TrainerSpec) -> list[Launch]:
    """The processes of this replica, in the order of their ranks.

    `$(NAME)` in a command and in the words of a script is replaced by the variable of the process, as Kubernetes does in pods.
    Raises BadConfiguration if the script or program cannot be started, or a variable is missing.
    """
    first = _first_rank(replica)
    if spec.command is not None:
        _check_lengths(environ)
        argv = tuple(expanded(word, environ) for word in spec.command)
        _check_program(argv[0], environ)
        return [Launch(first, argv, dict(environ))]
    # Without PYTHONUNBUFFERED, the last lines before a kill would be lost in the buffer, and they have the reason.
    shared, python = {"PYTHONUNBUFFERED": "1", **spec.strategy.framework.default_environment, **environ}, _python(spec, environ)
    if spec.script is not None and replica.processes > 1:
        shared = {"OMP_NUM_THREADS": "1", **shared}
    launches = []
    for local in range(replica.processes):
        env = _process_environment(shared, spec.strategy.framework, rank=first + local, local_rank=local)
        launches.append(Launch(first + local, _argv(spec, env, python=python), env))
    if spec.script is not None:
        for path in {launch.argv[1] for launch in launches}:
            _check_script(Path(path))
        if LARGE_VARIABLES in environ:
            return [replace(launch, argv=(launch.argv[0], str(SCRIPT_RUNNER), *launch.argv[1:])) for launch in launches]
    return launches


def _process_environment(shared: Mapping[str, str], framework: Framework, *, rank: int, local_rank: int) -> dict[str, str]:
    """The environment of one process: `shared`, its ranks, and the variables of the framework. Raises BadConfiguration."""
    env = {**shared, RANK: str(rank), LOCAL_RANK: str(local_rank)}
    for name, template in framework.process_environment.items():
        missing = [reference[1] for reference in REFERENCE.finditer(template) if reference[1] is not None and not env.get(reference[1])]
        if missing:
            raise BadConfiguration(f"{missing[0]} is not set; {framework.name} needs it for {name}")
    return {**env, **{name: expanded(template, env) for name, template in framework.process_environment.items()}}


def _first_rank(replica: ReplicaEnvironment) -> int:
    """The rank of the replica's first process, or the index of the replica if its role has no ranks."""
    first, size = replica.first_rank, replica.world_size or 0
    if first is None:
        return replica.index
    last = first + replica.processes - 1
    if last >= size:
        raise BadConfiguration(f"{NAMES['world_size']}: {size} is too small for the ranks {first} to {last} of this replica")
    return first


def _python(spec: TrainerSpec, environ: Mapping[str, str]) -> str:
    find = image.python_of if spec.script is not None else image.trainer_python_of
    return find(environ, field=spec.entry_point)


def _argv(spec: TrainerSpec, environ: Mapping[str, str], *, python: str) -> tuple[str, ...]:
    if spec.script is not None:
        return (python, *(expanded(word, environ) for word in _words(spec.script)))
    return (python, "-P", "-m", "muster_trainer.process")


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


def _words(script: str) -> list[str]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise BadConfiguration(f"spec.trainer.script: {script!r} cannot be split into words: {error}") from None
    if not words:
        raise BadConfiguration("spec.trainer.script: it is blank; write the path of a Python program")
    return words


def _check_script(path: Path) -> None:
    """Raises BadConfiguration if a script is missing or does not parse. Otherwise each process would fail with a traceback."""
    if not path.is_file():
        raise BadConfiguration(f"spec.trainer.script: there is no file {path} (the working directory is {Path.cwd()})")
    try:
        source = path.read_bytes()
        if path.suffix == ".py" and not image.COPIED:  # the Python of another image may have another syntax
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
