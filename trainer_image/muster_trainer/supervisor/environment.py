"""Which processes a replica starts, and the environment of each. Pure, but for looking at the user's files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster_trainer.contract import BadConfiguration, ReplicaEnv, TrainerSpec
from muster_trainer.supervisor import image


@dataclass(frozen=True)
class Launch:
    """One process to start. `rank` names it in reports and logs; its `env` is complete."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


MANY = str(2**31 - 1)
"""TORCHELASTIC_MAX_RESTARTS: Muster limits failures by their class and not restarts, so no restart is known to be the last."""

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def plan(environ: Mapping[str, str], replica: ReplicaEnv, spec: TrainerSpec) -> list[Launch]:
    """The processes of this replica, in the order of their ranks.

    `$(NAME)` in a command and in the words of a script is replaced by the variable of the process, as Kubernetes does in pods.
    Raises BadConfiguration where the script or program cannot be started or a variable is missing.
    """
    if spec.command is not None:
        argv = tuple(expanded(word, environ) for word in spec.command)
        _check_program(argv[0], environ)
        return [Launch(_single_rank(environ, replica), argv, dict(environ))]
    # Python buffers what goes into a pipe: the last lines before a kill would be lost, and they tell the reason.
    shared, python = {"PYTHONUNBUFFERED": "1", **environ}, _python(spec, environ)
    if replica.framework == "tensorflow":
        launches = [Launch(_single_rank(environ, replica), _argv(spec, shared, python=python), shared)]
    else:
        if spec.script is not None and replica.processes > 1:
            shared = {"OMP_NUM_THREADS": "1", **shared}
        worlds = [{**shared, **env} for env in _torch_environments(environ, replica)]
        launches = [Launch(int(env["RANK"]), _argv(spec, env, python=python), env) for env in worlds]
    if spec.script is not None:
        for path in {launch.argv[1] for launch in launches}:
            _check_script(Path(path))
    return launches


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable's value and `$$` by `$`; references to unknown names stay as they are.

    Source: `third_party/forked/golang/expansion/expand.go` of Kubernetes.
    """
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else environ.get(found[1], found[0]), text)


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
        "GROUP_WORLD_SIZE": str(_whole(environ, "PET_NNODES")),
        # torchrun's roles are groups of processes that restart together; a world of Muster's is one.
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": _either(environ, "MASTER_ADDR", "PET_MASTER_ADDR"),
        "MASTER_PORT": _either(environ, "MASTER_PORT", "PET_MASTER_PORT"),
        "TORCHELASTIC_RUN_ID": replica.job_uid,
        "TORCHELASTIC_RESTART_COUNT": str(replica.attempt),
        "TORCHELASTIC_MAX_RESTARTS": MANY,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 hosts the store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    ranks = [str(first + local) for local in range(count)]
    return [{**world, "RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": str(local)} for local, rank in enumerate(ranks)]


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


def _python(spec: TrainerSpec, environ: Mapping[str, str]) -> str:
    find = image.python_of if spec.script is not None else image.trainer_python_of
    return find(environ, field=spec.entry_point)


def _argv(spec: TrainerSpec, environ: Mapping[str, str], *, python: str) -> tuple[str, ...]:
    if spec.script is not None:
        return (python, *(expanded(word, environ) for word in _words(spec.script)))
    return (python, "-P", "-m", "muster_trainer.process")


def _check_program(program: str, environ: Mapping[str, str]) -> None:
    if shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
        raise BadConfiguration(
            f"spec.trainer.command: the program {program!r} is not found or not executable in this image; "
            "write a program on PATH or the path of one"
        )


def _words(script: str) -> list[str]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise BadConfiguration(f"spec.trainer.script: {script!r} cannot be split into words: {error}") from None
    if not words:
        raise BadConfiguration("spec.trainer.script: it is blank; write the path of a Python program")
    return words


def _check_script(path: Path) -> None:
    """Find a script that is absent or does not parse now, not once per process with a traceback each."""
    if not path.is_file():
        raise BadConfiguration(f"spec.trainer.script: there is no file {path} (the working directory is {Path.cwd()})")
    try:
        source = path.read_bytes()
        if path.suffix == ".py" and not image.COPIED:  # another Python than ours may have another syntax
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
