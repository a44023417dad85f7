"""The programs of the roles. The head starts Ray's control service and then the user's program. A worker starts a raylet.

Both end as soon as `ray start` ends, because it ends when one of its servers does. Muster then restarts the whole world.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from muster_contract.codes import ExitCode
from muster_contract.environment import EVENTS_FD, NAMES, RANK, ReplicaEnvironment
from muster_contract.errors import BadConfiguration, PeerLost
from muster_contract.events import Activity
from muster_contract.trainer_spec import TrainerSpec
from muster_ray.layout import ADDRESS, FLAGS, HEAD, JOIN_SECONDS, JOIN_SECONDS_SETTING, NODES, SETTINGS, TOKEN, TOKEN_ENTRY, WORKER_PORTS
from muster_trainer.host.events import Events
from muster_trainer.host.sockets import is_loopback
from muster_trainer.host.stopping import StopRequest
from muster_trainer.host.user_program import program_words, run_program, script_words
from muster_trainer.host.waiting import listens, seconds_in, until

Answer = TypeVar("Answer")
LOOK_SECONDS = 0.1
CONNECT_SECONDS = 1.0
TAIL_LINES, LONGEST_TAIL = 3, 600
SLOW_START = ("timed out during startup", "No node info found for head node in GCS")
"""What `ray start` prints if a raylet, its own or that of the head, takes longer than 30 s, as on a machine with much other work. Then it
is started again."""
WRONG_FLAGS = 2
"""The exit code of `ray start` for a flag that it does not know."""
CALLBACKS = "muster_ray.train.Controller,muster_ray.train.Worker"
IN_DRIVER = {"RAY_TRAIN_CALLBACKS": CALLBACKS, "RAY_gcs_server_port_wait_time_s": "1"}
"""Variables of the user's program. The cluster answers when it starts, so one try is enough. By default, `ray.init()` tries an address that
does not answer for ten minutes. Source: `ray/_private/node.py`."""
_ENDED = re.compile(r"-- (\w+) \[exit code=(-?\d+)\]")
_TEMPORARY = Path("/tmp")  # a path of Ray's sockets has at most 107 bytes, so that a run directory is too long


@dataclass(frozen=True)
class Place:
    """Where this node is. `local` means that all nodes are on this machine."""

    role: str
    index: int
    gcs: str
    own: str | None
    """The address of this node. None: Ray finds it out."""
    local: bool

    @classmethod
    def of(cls, replica: ReplicaEnvironment, address: str) -> Place:
        """Raises BadConfiguration if the variable of the address is missing."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise BadConfiguration(f"{ADDRESS}: {address!r} is no address; Muster sets it, so remove it from your own variables")
        if not is_loopback(host):
            return cls(replica.role, replica.index, address, None, local=False)
        # Ray replaces 127.0.0.1 by an address of the network, and keeps the other addresses of the loopback interface.
        first = ip_address("127.0.0.2")
        number = 0 if replica.role == HEAD else 1 + replica.index
        return cls(replica.role, replica.index, f"{first}:{port}", str(first + number), local=True)

    def words(self, flags: str, folder: Path) -> list[str]:
        """The command that starts this node and waits for its end."""
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *shlex.split(flags)]
        if self.role == HEAD:
            words += ["--head", "--no-monitor", f"--temp-dir={folder}"]
        else:
            words.append(f"--address={self.gcs}")
        if self.own is not None:
            words.append(f"--node-ip-address={self.own}")
        if self.local and self.role != HEAD:
            words.append("--include-log-monitor=false")  # the nodes share a folder of logs, which the monitor of the head reads
        first, last = (0, 0) if self.local else WORKER_PORTS
        return [*words, f"--min-worker-port={first}", f"--max-worker-port={last}"]


def message_of(log: str) -> str:
    """What the output of `ray start` says about its end: the servers that have ended, or else its last lines."""
    if ended := _ENDED.findall(log):
        return ", ".join(f"{name} with exit code {code}" for name, code in ended)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return " ".join(lines[-TAIL_LINES:])[-LONGEST_TAIL:]


class Node:
    """The servers of Ray on this node: a child that ends when one of them ends."""

    def __init__(self, place: Place, replica: ReplicaEnvironment, environ: Mapping[str, str]) -> None:
        self._place = place
        self._environ = dict(environ)
        self._log = replica.state_dir / f"ray-start-{replica.attempt}.log"
        self._folder = _TEMPORARY / f"muster-ray-{replica.job_uid[:8]}-{replica.attempt}"
        if place.role == HEAD:
            for earlier in _TEMPORARY.glob(f"muster-ray-{replica.job_uid[:8]}-*"):
                shutil.rmtree(earlier, ignore_errors=True)
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        words = self._place.words(self._environ.get(FLAGS, ""), self._folder)
        with self._log.open("wb") as log:
            return subprocess.Popen(words, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def check(self) -> None:
        """Raises PeerLost if a server has ended, with the end of what it printed, and BadConfiguration if a flag is wrong."""
        if (code := self.process.poll()) is None:
            return
        message = message_of(self._log.read_text(errors="replace"))
        if code == WRONG_FLAGS:
            raise BadConfiguration(
                f"ray start does not take its flags ({message}); correct spec.trainer.config.{SETTINGS}.{self._place.role}"
            )
        if not any(sentence in message for sentence in SLOW_START):
            raise PeerLost(f"a server of Ray on this node has ended: {message or f'ray start ended with exit code {code}'}")
        self.process = self._started()

    def close(self) -> None:
        """Ends `ray start`. The supervisor ends what it leaves behind."""
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Cluster:
    """The control service of the cluster, as far as the head asks it."""

    def __init__(self, gcs: str) -> None:
        self._gcs = gcs
        self._client: Any = None

    def nodes(self) -> int:
        """The number of nodes that are alive."""
        return self._answer(lambda client: sum(1 for node in client.get_all_node_info(timeout=CONNECT_SECONDS).values() if node.state == 0))

    def has_driver(self) -> bool:
        """Whether a program has connected to this cluster."""
        return self._answer(lambda client: bool(client.get_all_job_info(timeout=CONNECT_SECONDS)))

    def _answer(self, question: Callable[[Any], Answer]) -> Answer:
        """Asks with a new client after an error, because a service that was started again refuses the clients of the one before."""
        from ray._raylet import GcsClient

        client, self._client = self._client or GcsClient(address=self._gcs), None
        answer = question(client)
        self._client = client
        return answer


def head(spec: TrainerSpec, events: Events, stop: StopRequest) -> int:
    """Runs the cluster's head and the user's program. Its exit code is the result."""
    stop.training = True
    replica, environ = _prepared()
    place = Place.of(replica, environ[ADDRESS])
    words = program_words(spec, environ)
    _check_address(spec, environ, place)
    node = Node(place, replica, environ)
    try:
        cluster = _joined(place, node, spec, stop, expected=int(environ.get(NODES, "1")))
        if cluster is None:
            return ExitCode.PREEMPTED
        events.phase(Activity.TRAINING)
        code = run_program(words, {**environ, **IN_DRIVER}, stop, check=node.check)
        return _completed(cluster) if code == ExitCode.COMPLETED else code
    finally:
        node.close()


def worker(spec: TrainerSpec, events: Events, stop: StopRequest) -> int:
    """Runs a raylet until it ends or Muster ends it."""
    stop.training = True
    replica, environ = _prepared()
    place = Place.of(replica, environ[ADDRESS])
    seconds = seconds_in(spec, JOIN_SECONDS_SETTING, JOIN_SECONDS)
    if not until(lambda: listens(place.gcs), stop, seconds=seconds):
        if stop.requested:
            return ExitCode.PREEMPTED
        raise PeerLost(f"the head of the Ray cluster did not answer at {place.gcs} for {seconds:g} s; {_INSTEAD}")
    node = Node(place, replica, environ)
    events.phase(Activity.TRAINING)
    try:
        while not stop.requested:
            node.check()
            time.sleep(LOOK_SECONDS)
        return ExitCode.PREEMPTED_NOT_SAVED
    finally:
        node.close()


_INSTEAD = f"look at its log, or write more seconds into trainer.config.{JOIN_SECONDS_SETTING}"


def _prepared() -> tuple[ReplicaEnvironment, dict[str, str]]:
    """The replica, and the environment of Ray's servers and of the user's program. Raises BadConfiguration if the image has no Ray.

    A process that Ray starts is a world of its own, until Ray Train gives it a rank (`train.Controller`).
    """
    if importlib.util.find_spec("ray") is None:
        raise BadConfiguration("the image has no Python package ray; use a trainer image for Ray, or install ray[train] in yours")
    replica = ReplicaEnvironment.from_environment(os.environ)
    place = Place.of(replica, os.environ.get(ADDRESS, ""))
    if replica.objects is not None:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(replica.objects / TOKEN / TOKEN_ENTRY)
    alone = {RANK: "0", NAMES["first_rank"]: "0", NAMES["world_size"]: "1", ADDRESS: place.gcs}
    return replica, {**{name: value for name, value in os.environ.items() if name != EVENTS_FD}, **alone}


def own_address(source: str, gcs: str) -> tuple[int, str] | None:
    """The line and the address of the first `ray.init()` of a program, if each names another host than that of `gcs` or this machine.

    None if a call leaves the address out or computes it, because that call may be the one that counts.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init":
            address = next((each.value for each in node.keywords if each.arg in ("address", None)), node.args[0] if node.args else None)
            if not (isinstance(address, ast.Constant) and isinstance(address.value, str)) or address.value == "auto":
                return None
            host = address.value.rpartition("://")[2].rpartition(":")[0]
            if host == gcs.rpartition(":")[0] or is_loopback(host):
                return None
            found.append((node.lineno, address.value))
    return min(found, default=None)


def _check_address(spec: TrainerSpec, environ: Mapping[str, str], place: Place) -> None:
    if spec.script is None:
        return
    path = Path(script_words(spec.script, environ)[0])
    with warnings.catch_warnings(action="ignore"), suppress(SyntaxError, ValueError, RecursionError):  # Python judges the program itself
        if found := own_address(path.read_text(), place.gcs):
            number, address = found
            raise BadConfiguration(
                f"spec.trainer.script: {path}:{number} calls ray.init() with the address {address!r}; leave the address out, because the "
                f"job has a Ray cluster of its own, and {ADDRESS} has its address"
            )


def _joined(place: Place, node: Node, spec: TrainerSpec, stop: StopRequest, *, expected: int) -> Cluster | None:
    """Waits until all nodes have joined. None after a request to stop. Raises PeerLost after the deadline."""
    deadline = time.monotonic() + seconds_in(spec, JOIN_SECONDS_SETTING, JOIN_SECONDS)
    cluster, count = Cluster(place.gcs), 0
    while time.monotonic() < deadline and not stop.requested:
        node.check()
        with suppress(Exception):  # errors of Ray have no common type, and the service may not answer yet
            count = cluster.nodes() if listens(place.gcs) else 0
        if count >= expected:
            return cluster
        time.sleep(LOOK_SECONDS)
    if stop.requested:
        return None
    raise PeerLost(f"{count} of {expected} Ray nodes joined in {seconds_in(spec, JOIN_SECONDS_SETTING, JOIN_SECONDS):g} s; {_INSTEAD}")


def _completed(cluster: Cluster) -> ExitCode:
    """COMPLETED if the program has used this cluster. Raises BadConfiguration otherwise: it has trained elsewhere, on the head alone."""
    used = True
    with suppress(Exception):  # a service that does not answer now has been used
        used = cluster.has_driver()
    if not used:
        raise BadConfiguration(
            "the program ended without a connection to the job's Ray cluster; call ray.init() without an address, because "
            f"{ADDRESS} has it, and without num_cpus"
        )
    return ExitCode.COMPLETED
