"""Training processes that the test starts without a supervisor. Their events come through pipes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from muster.local.ports import reserve_ports
from muster_contract.environment import MEMORY_FD, ORDERS_FD
from muster_contract.wire import encode
from muster_trainer.checkpoint.objects import Location
from tests.support import descriptors, forked
from tests.support.training_run import TrainingRun
from tests.support.waiting import Result

CREATED = "2026-11-21T11:16:14Z"
DEADLINE = 240.0


def trainer(directory: Location | None, *, config: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A MUSTER_TRAINER document: digits, three epochs of 23 steps, a checkpoint every 10 steps."""
    checkpoint = {"directory": str(directory), "resume": "Auto", "everySteps": 10, "everySeconds": None, "keep": 3}
    document = {
        "task": "digits",
        "config": {"epochs": 3, "seed": 7, **(config or {})},
        "batch": {"globalSize": 64, "accumulationSteps": 1, "learningRateScaling": "None"},
        "options": {},
        "communication": "Auto",
        "checkpoint": None if directory is None else checkpoint | fields.pop("checkpoint", {}),
        "graceSeconds": 30,
    } | fields
    if "module" in fields:
        del document["task"]
    return document


@dataclass
class BareWorld(TrainingRun):
    """Running processes by rank, and the events that each has sent."""

    processes: list[forked.Forked] = field(default_factory=list)
    all_events: list[dict[str, Any]] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)
    pipes: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    environments: list[Mapping[str, str]] = field(default_factory=list)
    memories: Sequence[int] = ()
    """Descriptors, one for each rank that keeps snapshots."""
    takes_orders: bool = False
    orders: list[int] = field(default_factory=list)
    """The writing ends of the pipes of the processes that take orders."""
    deadline = DEADLINE

    def start(self, rank: int) -> None:
        """Starts the process of that rank, or starts it again."""
        passed = {MEMORY_FD: self.memories[rank]} if self.memories else {}
        if self.takes_orders:
            passed[ORDERS_FD], orders = os.pipe()
            self.orders[rank:] = [orders, *self.orders[rank + 1 :]]
        process, reader = _start(self, self.environments[rank], passed)
        if self.takes_orders:
            os.close(passed[ORDERS_FD])
        self.processes[rank:] = [process, *self.processes[rank + 1 :]]
        self.pipes[rank:] = [reader, *self.pipes[rank + 1 :]]

    def has_ended(self) -> bool:
        return not any(reader.is_alive() for reader in self.readers)

    def _poll(self, condition: Callable[[], Result | None], what: str, seconds: float) -> Result:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (result := condition()):
                assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
                self.changed.wait(0.5)
        return result

    def wait_for_commit(self, step: int) -> None:
        self.wait_for_event("commit", lambda event: event["step"] >= step)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        self.processes[rank].send_signal(number)

    def order(self, rank: int, **content: object) -> None:
        """Sends an order as the supervisor of the process does."""
        os.write(self.orders[rank], json.dumps(content).encode() + b"\n")

    def abandon(self, rank: int) -> None:
        """Closes the reading end of the process's event pipe, as happens when a supervisor dies."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self.pipes[rank])
        os.close(nothing)

    def finish(self, seconds: float = DEADLINE) -> list[int]:
        """The exit codes of all processes, once they have ended and all their output is read."""
        limit = time.monotonic() + seconds
        codes = [process.wait(max(limit - time.monotonic(), 0.1)) for process in self.processes]
        for reader in self.readers:
            reader.join(10)
        return codes

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.changed:
            return [event for event in self.all_events if event["event"] == kind]

    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.events("evaluation")[-1]["metrics"]
        return metrics

    def story(self) -> str:
        return "".join(self.output)[-3000:] + f"\nlast events: {self.all_events[-3:]}"

    def read_events(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as lines:
            for line in lines:
                with self.changed:
                    self.all_events.append(json.loads(line))
                    self.changed.notify_all()

    def read_output(self, process: forked.Forked) -> None:
        assert process.stdout is not None
        self.output.extend(process.stdout)


@contextmanager
def world(
    strategy: str,
    document: Mapping[str, Any],
    *,
    size: int = 2,
    roles: Sequence[str] = (),
    attempt: int = 0,
    memories: Sequence[int] = (),
    takes_orders: bool = False,
    **env: str,
) -> Iterator[BareWorld]:
    """Starts the processes of one attempt, `size` of them or one for each of `roles`; what is left of them is killed at the end. With
    `memories`, each of them is alone in its pod."""
    roles = roles or _roles(strategy, size)
    running = BareWorld(memories=memories, takes_orders=takes_orders)
    with reserve_ports(len(roles)) as ports:
        ports.start_sharing()
        try:
            for rank in range(len(roles)):
                pod = {"MUSTER_POD_UID": f"pod-{rank}"} if memories else {}
                variables = _environment(strategy, document, ports.numbers, roles=roles, rank=rank, attempt=attempt)
                running.environments.append(variables | pod | env)
                running.start(rank)
            yield running
        finally:
            for process in running.processes:
                process.kill()
                process.wait()
            for reader in running.readers:
                reader.join(10)
            for process in running.processes:
                if process.stdout:
                    process.stdout.close()
            for orders in running.orders:
                os.close(orders)


def _roles(strategy: str, size: int) -> list[str]:
    return ["chief", *["worker"] * (size - 2), "ps"] if strategy in ("RPC", "ParameterServer") else ["worker"] * size


def _environment(
    strategy: str, document: Mapping[str, Any], ports: Sequence[int], *, roles: Sequence[str], rank: int, attempt: int
) -> dict[str, str]:
    descriptor = descriptors.runtime(strategy)
    torch = descriptor.framework.name == "PyTorch"
    index = roles[:rank].count(roles[rank])
    env = {
        "MUSTER_JOB": "default/digits",
        "MUSTER_JOB_UID": "uid",
        "MUSTER_JOB_CREATED": CREATED,
        "MUSTER_STRATEGY": strategy,
        "MUSTER_ROLE": roles[rank],
        "MUSTER_INDEX": "0" if torch else str(index),
        "MUSTER_ATTEMPT": str(attempt),
        "MUSTER_PROCESSES": str(len(ports)) if torch else "1",
        "MUSTER_POD_NAME": "digits-worker-0",
        "MUSTER_POD_UID": "pod-uid",
        "MUSTER_TRAINER": json.dumps({**document, "strategy": encode(descriptor)}),
        "MUSTER_RANK": str(rank if torch else index),
        "MUSTER_WORLD_SIZE": str(len(ports)),
        "MUSTER_WORLD_ADDRESS": f"127.0.0.1:{ports[0]}",
        "OMP_NUM_THREADS": "1",
    }
    if torch:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(ports), "LOCAL_WORLD_SIZE": len(ports)}
        address = {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
        return env | {name: str(value) for name, value in (place | address).items()}
    if descriptor.framework.name == "JAX":
        if roles[rank] == "evaluator":
            return env
        address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[0]}", "JAX_NUM_PROCESSES": roles.count("worker"), "JAX_PROCESS_ID": rank}
        return env | {name: str(value) for name, value in address.items()}
    if len(ports) > 1:
        cluster: dict[str, list[str]] = {}
        for role, port in zip(roles, ports, strict=True):
            if role in (roles[rank], "chief", "worker", "ps"):
                cluster.setdefault(role, []).append(f"127.0.0.1:{port}")
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": roles[rank], "index": index}})
        env["GRPC_FAIL_FAST"] = "use_caller"
    return env


def _start(running: BareWorld, env: Mapping[str, str], passed: Mapping[str, int]) -> tuple[forked.Forked, int]:
    reader, writer = os.pipe()
    process = forked.start(env["MUSTER_STRATEGY"], {**os.environ, **env}, writer, passed=passed)
    os.close(writer)
    threads = threading.Thread(target=running.read_events, args=(reader,)), threading.Thread(target=running.read_output, args=(process,))
    for thread in threads:
        thread.daemon = True
        thread.start()
        running.readers.append(thread)
    return process, reader
