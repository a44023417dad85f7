"""The operator's side: the descriptor of the strategy Ray.

The head runs Ray's control service (GCS) and the user's program, which is the driver. Each worker runs a raylet, which starts the
processes of the training. Muster owns restarts: a lost process, raylet or pod restarts the whole world in place.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.api.problems import Problem
from muster.api.spec import WORKER, Role, RoleName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, ExtraObject, ReplicaPlan, RoleRule, Strategy, WorldPlan, processes_of, worker_of
from muster.strategies.libraries import GLOO_PEER_LOST, NCCL_PEER_LOST
from muster.strategies.own_programs import seconds_problems, secret_of, task_problems, text_of
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime
from muster_ray.layout import (
    ADDRESS,
    FLAG_OF,
    FLAGS,
    GCS,
    HEAD,
    HEAD_PORTS,
    JOIN_SECONDS_SETTING,
    NODES,
    OWN_FLAGS,
    PORTS,
    SETTINGS,
    TOKEN,
    TOKEN_ENTRY,
)

FRAMEWORK = Framework(
    name="Ray",
    package="muster_ray",
    modules=("ray", "torch"),
    world_variables=(ADDRESS,),
    default_environment={
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_BACKEND_LOG_LEVEL": "warning",
        "RAY_COLOR_PREFIX": "0",  # the log is no terminal
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how often Ray Train takes reports, and looks for lost processes; 2 s by default
    },
    peer_lost=(
        *GLOO_PEER_LOST,
        *NCCL_PEER_LOST,
        r"\b(?:ActorDied|ActorUnavailable|WorkerCrashed|NodeDied|OwnerDied|ObjectLost|RaySystem|LocalRayletDied)Error\b",
        r"The actor (?:died|is unavailable)|The worker died unexpectedly",
        r"Failed to connect to GCS|GCS.*(?:unavailable|failed to respond)|raylet (?:died|has died)",
        r"Ray cluster at .* is gone",
    ),
)
LONGEST_VALUE = 1000
FLAG = re.compile(r"[a-z][a-z0-9-]{0,62}")
_STARTS_RAY = re.compile(r"\bray\s+(?:start|job\s+submit|submit)\b")


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """The address of the cluster, its size, and the flags of this node."""
    address = f"{addresses.host(HEAD, 0)}:{addresses.port(HEAD, 0, GCS)}"
    ports = {FLAG_OF[name]: str(addresses.port(replica.role, replica.index, name)) for name in replica.ports}
    flags = {**ports, **_resources(spec, replica.role), **_settings(spec, replica.role)}
    words = shlex.join(f"--{name}={value}" for name, value in flags.items())
    return {ADDRESS: address, NODES: str(len(plan.replicas)), FLAGS: words, "RAY_AUTH_MODE": "token"}


def _resources(spec: TrainingJobSpec, name: RoleName) -> dict[str, str]:
    """The CPUs and GPUs that Ray may give to tasks of this role. The head gets none, so that the control service keeps its processors. Ray
    counts the CPUs of a worker by itself if the job has no limit and no number of processes."""
    if name == HEAD:
        return {"num-cpus": "0"}
    role = spec.roles.get(name) or Role()
    cpus, gpus = accelerators.cpus(role), accelerators.count(role, accelerators.GPUS)
    count = max(1, math.floor(cpus)) if cpus is not None else role.processes_per_replica
    return {**({"num-cpus": str(count)} if count else {}), **({"num-gpus": str(gpus)} if gpus else {})}


def _settings(spec: TrainingJobSpec, name: RoleName) -> dict[str, str]:
    """The flags in the job. Whatever is wrong with them, `problems` names."""
    settings = spec.trainer.config.get(SETTINGS)
    given = settings.get(name) if isinstance(settings, Mapping) else None
    default = {"include-dashboard": "false"} if name == HEAD else {}
    return {**default, **{flag: text_of(value) for flag, value in given.items()}} if isinstance(given, Mapping) else default


def objects(spec: TrainingJobSpec, plan: WorldPlan, addresses: Addresses) -> Sequence[ExtraObject]:
    return [secret_of(TOKEN, TOKEN_ENTRY)]


def data_parallel(spec: TrainingJobSpec) -> int:
    worker = worker_of(spec)
    return worker.replicas * processes_of(worker)


def problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    """What a job of this strategy may not say."""
    trainer = spec.trainer
    yield from task_problems(
        spec, "Ray runs a program of your own on the head; write script or command, with the program that calls ray.init()"
    )
    if _STARTS_RAY.search(" ".join(trainer.command or ())) or _STARTS_RAY.search(trainer.script or ""):
        field = "command" if trainer.command else "script"
        yield Problem(
            f"spec.trainer.{field}", "Muster starts Ray on all replicas; write the program itself, without `ray start` and `ray job submit`"
        )
    yield from seconds_problems(spec, JOIN_SECONDS_SETTING)
    yield from _settings_problems(trainer.config.get(SETTINGS), f"spec.trainer.config.{SETTINGS}")


def _settings_problems(settings: Any, field: str) -> Iterator[Problem]:
    if settings is None:
        return
    if not isinstance(settings, Mapping) or settings.keys() - {HEAD, WORKER}:
        yield Problem(field, f"write the flags of `ray start` below {HEAD} and {WORKER}, such as {{{WORKER}: {{num-cpus: 4}}}}")
        return
    for role, flags in settings.items():
        if not isinstance(flags, Mapping):
            yield Problem(f"{field}.{role}", "write the flags of `ray start` by name, such as {num-cpus: 4}")
            continue
        for name, value in flags.items():
            if not isinstance(name, str) or not FLAG.fullmatch(name):
                yield Problem(f"{field}.{role}", f"{name!r:.80} is not a flag; write its name without the two hyphens, such as num-cpus")
            elif name in OWN_FLAGS:
                yield Problem(f"{field}.{role}.{name}", "Muster sets this flag; leave it out")
            elif not isinstance(value, str | int | float) or len(str(value)) > LONGEST_VALUE:
                message = f"{value!r:.80} is not a value; write a text of at most {LONGEST_VALUE} characters, or a number"
                yield Problem(f"{field}.{role}.{name}", message)


RAY = Strategy(
    runtime=StrategyRuntime(
        "Ray",
        FRAMEWORK,
        roles={
            HEAD: RoleRuntime(program="muster_ray.nodes:head", takes_over=True),
            WORKER: RoleRuntime(program="muster_ray.nodes:worker", takes_over=True),
        },
    ),
    roles={
        HEAD: RoleRule(maximum=1, single_process=True, ranked=False, decides_success=True, ports={**HEAD_PORTS, **PORTS}),
        WORKER: RoleRule(slots=True, ports=PORTS),
    },
    environment=environment,
    objects=objects,
    reserved=frozenset({"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_TRAIN_CALLBACKS"}),
    data_parallel=data_parallel,
    checks=(problems,),
    local_remark="Ray's servers listen on every network address of this machine; a token of this run protects them",
)
