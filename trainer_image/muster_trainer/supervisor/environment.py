"""Decides which processes a replica starts, and the environment of each. The functions are pure, except that they check the user's
files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from muster_contract.environment import LARGE_VARIABLES, LOCAL_RANK, NAMES, RANK, REFERENCE, ReplicaEnvironment, expanded
from muster_contract.errors import BadConfiguration
from muster_contract.large_variables import LONGEST, pack, unpack
from muster_contract.strategy import Framework
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.user_program import check_script, command_words, script_words
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
    title: str = ""
    """What `ps` shows besides job and replica. Empty for a command of the user, which stays as it is."""


def with_world(environ: Mapping[str, str], world: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the variables of the attempt replaced by those of another attempt."""
    return {**{name: value for name, value in environ.items() if name != LARGE_VARIABLES}, **world}


def unpacked(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with plain variables, except those that are too long for any program. Raises BadConfiguration."""
    return pack(unpack(environ), above=LONGEST)


def plan(environ: Mapping[str, str], replica: ReplicaEnvironment, spec: TrainerSpec) -> list[Launch]:
    """The processes of this replica, in the order of their ranks.

    `$(NAME)` in a command and in the words of a script is replaced by the variable of the process, as Kubernetes does in pods. A program
    of the role may take their place. Raises BadConfiguration if the script or program cannot be started, or a variable is missing.
    """
    first = _first_rank(replica)
    script, command = (None, None) if spec.program_of(replica.role, replica.index) else (spec.script, spec.command)
    if command is not None:
        return [Launch(first, command_words(command, environ), dict(environ))]
    shared = _shared(environ, replica, spec)
    python = (image.trainer_python_of if script is None else image.python_of)(environ, field=spec.entry_point)
    launches = []
    for local in range(replica.processes):
        env = _process_environment(shared, spec.strategy.framework, rank=first + local, local_rank=local)
        launches.append(Launch(first + local, _argv(script, env, python=python), env, title=f"rank-{first + local}"))
    if script is not None:
        for path in {launch.argv[1] for launch in launches}:
            check_script(Path(path), parses=not image.COPIED)  # the Python of another image may have another syntax
        if LARGE_VARIABLES in environ:
            return [replace(launch, argv=(launch.argv[0], str(SCRIPT_RUNNER), *launch.argv[1:])) for launch in launches]
    return launches


def script_of(environ: Mapping[str, str], replica: ReplicaEnvironment, spec: TrainerSpec) -> tuple[Mapping[str, str], Path] | None:
    """The environment of this replica's script as far as it does not depend on the world, and its path. None without a script. Raises
    BadConfiguration."""
    if spec.script is None or spec.program_of(replica.role, replica.index):
        return None
    shared = _shared(environ, replica, spec)
    return shared, Path(script_words(spec.script, shared)[0])


def _shared(environ: Mapping[str, str], replica: ReplicaEnvironment, spec: TrainerSpec) -> dict[str, str]:
    """What all processes of the replica have."""
    # Without PYTHONUNBUFFERED, the last lines before a kill would be lost in the buffer, and they have the reason.
    shared = {"PYTHONUNBUFFERED": "1", **spec.strategy.framework.default_environment, **environ}
    threads = {"OMP_NUM_THREADS": "1"} if spec.script is not None and replica.processes > 1 else {}
    return {**threads, **shared}


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


def _argv(script: str | None, environ: Mapping[str, str], *, python: str) -> tuple[str, ...]:
    if script is not None:
        return (python, *script_words(script, environ))
    return (python, "-P", "-m", "muster_trainer.process")
