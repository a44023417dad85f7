"""The operator's side: the descriptor of the strategy Spark.

The driver runs a standalone master and the user's program, whose SparkSession is the driver. Each executor runs a standalone worker, which
starts one executor. Muster owns restarts: a lost executor, worker or driver restarts the whole world in place.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.api.problems import Problem
from muster.api.quantity import amount_of
from muster.api.spec import Role, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, ExtraObject, ReplicaPlan, RoleRule, Strategy, WorldPlan, processes_of
from muster.strategies.libraries import GLOO_PEER_LOST, NCCL_PEER_LOST
from muster.strategies.own_programs import seconds_problems, secret_of, task_problems, text_of
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime
from muster_spark.layout import (
    CONF,
    DRIVER,
    DRIVER_BLOCKS,
    DRIVER_PORTS,
    DRIVER_RPC,
    DRIVER_UI,
    EXECUTOR,
    EXECUTOR_BLOCKS,
    EXECUTOR_PORTS,
    EXECUTORS,
    FLAGS,
    GPUS,
    JOIN_SECONDS_SETTING,
    MASTER,
    MASTER_PORT,
    MASTER_UI,
    OBJECT,
    OF_ROLES,
    OWN,
    SECRET,
    SETTINGS,
    WORKER_PORT,
    WORKER_UI,
)

FRAMEWORK = Framework(
    name="Spark",
    package="muster_spark",
    modules=("pyspark", "py4j", "torch"),
    world_variables=(MASTER,),
    peer_lost=(
        *GLOO_PEER_LOST,
        *NCCL_PEER_LOST,
        r"ExecutorLostFailure|ExecutorDeadException|MetadataFetchFailedException|FetchFailed\(",
        r"Lost executor|Worker lost|worker lost|All masters are unresponsive|Master removed our application",
        r"failed barrier ResultStage",  # an error of a task has an exception of its own behind it, which counts
        r"SparkContext was shut down|stopped SparkContext",
    ),
)
MIB = 1 << 20
BESIDE_MIB = 512
"""What Spark's daemon and the supervisor of a pod need besides an executor or driver."""
OVERHEAD = 1.4
"""The memory of a Python program with Spark as a multiple of Java's heap. Source: `spark.executor.memoryOverheadFactor` on Kubernetes."""
SMALLEST_MIB = 512
"""Spark does not start with less heap than 450 MiB."""
LONGEST_VALUE = 4000
_NAME = re.compile(r"spark\.[A-Za-z0-9_.*-]{1,200}")
_SUBMIT = re.compile(r"\bspark-submit\b")
_MASTER_FLAG = re.compile(r"(?:^|\s)--master(?:[\s=]|$)")


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """The address of the master, the size of the cluster, and the flags and properties of this node."""
    executors = len(plan.of(EXECUTOR))
    names = {DRIVER: (MASTER_PORT, MASTER_UI), EXECUTOR: (WORKER_PORT, WORKER_UI)}[replica.role]
    port, ui = (str(addresses.port(replica.role, replica.index, name)) for name in names)
    flags = ["--port", port, "--webui-port", ui]
    conf = properties(spec, executors)
    if replica.role == EXECUTOR:
        flags += ["--cores", str(cores(executor_of(spec))), "--memory", conf["spark.executor.memory"]]
        if gpus := accelerators.count(executor_of(spec), accelerators.GPUS):
            conf[GPUS] = str(gpus)
    else:
        conf |= {
            "spark.driver.port": str(addresses.port(DRIVER, 0, DRIVER_RPC)),
            "spark.driver.blockManager.port": str(addresses.port(DRIVER, 0, DRIVER_BLOCKS)),
            "spark.ui.port": str(addresses.port(DRIVER, 0, DRIVER_UI)),
            "spark.blockManager.port": str(EXECUTOR_PORTS[EXECUTOR_BLOCKS]),
        }
    return {
        MASTER: f"{addresses.host(DRIVER, 0)}:{addresses.port(DRIVER, 0, MASTER_PORT)}",
        EXECUTORS: str(executors),
        FLAGS: shlex.join(flags),
        CONF: json.dumps(conf),
    }


def executor_of(spec: TrainingJobSpec) -> Role:
    return spec.roles.get(EXECUTOR) or Role()


def cores(role: Role) -> int:
    """How many tasks an executor runs at a time: its CPU limit, or else its number of processes."""
    limit = accelerators.cpus(role)
    return max(1, math.floor(limit)) if limit is not None else processes_of(role)


def properties(spec: TrainingJobSpec, executors: int) -> dict[str, str]:
    """Spark's properties for this job. Whatever is wrong with those of the user, `problems` names."""
    executor = executor_of(spec)
    given = spec.trainer.config.get(SETTINGS)
    gpus = accelerators.count(executor, accelerators.GPUS)
    on_gpus = {"spark.executor.resource.gpu.amount": str(gpus), "spark.task.resource.gpu.amount": "1"} if gpus else {}
    return {
        "spark.executor.memory": _heap(executor),
        "spark.driver.memory": _heap(spec.roles.get(DRIVER) or Role()),
        "spark.cores.max": str(executors * cores(executor)),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.ui.showConsoleProgress": "false",
        **on_gpus,
        **({name: text_of(value) for name, value in given.items()} if isinstance(given, Mapping) else {}),
    }


def _heap(role: Role) -> str:
    """Java's heap in a pod with this memory limit. Without a limit, it is Spark's own default."""
    limit = amount_of(accelerators.limits(role).get("memory"))
    return "1024m" if limit is None else f"{max(SMALLEST_MIB, math.floor((int(limit) / MIB - BESIDE_MIB) / OVERHEAD))}m"


def objects(spec: TrainingJobSpec, plan: WorldPlan, addresses: Addresses) -> Sequence[ExtraObject]:
    return [secret_of(OBJECT, SECRET)]


def data_parallel(spec: TrainingJobSpec) -> int:
    executor = executor_of(spec)
    return executor.replicas * processes_of(executor)


def problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    """What a job of this strategy may not say."""
    trainer = spec.trainer
    yield from task_problems(spec, "Spark runs a program of your own; write script or command, with the program that makes a SparkSession")
    field = "command" if trainer.command else "script"
    line = " ".join([*(trainer.command or ()), trainer.script or "", *(trainer.args or ())])
    if _SUBMIT.search(line):
        message = (
            "Muster starts the program as the driver, without spark-submit; write the Python program itself, and the properties of "
            f"--conf below spec.trainer.config.{SETTINGS}"
        )
        yield Problem(f"spec.trainer.{field}", message)
    elif _MASTER_FLAG.search(line) and "pyspark" in line:
        yield Problem(f"spec.trainer.{field}", "the job has a Spark master of its own; leave out --master")
    yield from seconds_problems(spec, JOIN_SECONDS_SETTING)
    yield from _settings_problems(trainer.config.get(SETTINGS), f"spec.trainer.config.{SETTINGS}")
    processes, cpus = executor_of(spec).processes_per_replica or 1, cores(executor_of(spec))
    if processes > cpus:
        message = f"{processes} processes do not fit on {cpus} CPUs of limits.cpu; write a higher limit or fewer processes"
        yield Problem(f"spec.roles.{EXECUTOR}.processesPerReplica", message)


def _settings_problems(settings: Any, field: str) -> Iterator[Problem]:
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        yield Problem(field, "write the properties of Spark by name, such as {spark.sql.shuffle.partitions: 8}")
        return
    for name, value in settings.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield Problem(field, f"{name!r:.80} is not a property of Spark; write a name such as spark.sql.shuffle.partitions")
        elif name in OWN:
            yield Problem(f"{field}.{name}", "Muster sets this property; leave it out")
        elif name in OF_ROLES:
            yield Problem(f"{field}.{name}", f"this follows from the role; write {OF_ROLES[name]}, and leave it out here")
        elif name.startswith("spark.kubernetes."):
            message = "Spark creates no pods here; write the same into the template of the role, and leave it out"
            yield Problem(f"{field}.{name}", message)
        elif not isinstance(value, str | int | float) or len(str(value)) > LONGEST_VALUE:
            message = f"{value!r:.80} is not a value; write a text of at most {LONGEST_VALUE} characters, or a number"
            yield Problem(f"{field}.{name}", message)


SPARK = Strategy(
    runtime=StrategyRuntime(
        "Spark",
        FRAMEWORK,
        roles={
            DRIVER: RoleRuntime(program="muster_spark.nodes:driver", takes_over=True),
            EXECUTOR: RoleRuntime(program="muster_spark.nodes:executor", takes_over=True),
        },
    ),
    roles={
        DRIVER: RoleRule(maximum=1, single_process=True, ranked=False, decides_success=True, ports=DRIVER_PORTS),
        EXECUTOR: RoleRule(slots=True, ports=EXECUTOR_PORTS),
    },
    environment=environment,
    objects=objects,
    reserved=frozenset({"SPARK_CONF_DIR", "SPARK_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"}),
    data_parallel=data_parallel,
    checks=(problems,),
)
