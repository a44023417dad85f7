"""The strategy MPI: the hosts that mpirun gets, the jobs it refuses, and what the ends of mpirun mean."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from muster.admission.validate import problems
from muster_contract.codes import ExitCode
from muster_contract.errors import BadConfiguration, PeerLost
from muster_contract.trainer_spec import BatchSpec, TrainerSpec
from muster_mpi.commands import Identity, await_host, run_remotely, serve_one
from muster_mpi.launcher import failure
from muster_mpi.mpirun import Output, hostfile, open_mpi, variables
from muster_mpi.names import HOSTS, PORT, Host, read
from muster_mpi.worker import with_exec
from muster_trainer.host.ranks import Lines
from tests.support.descriptors import runtime
from tests.support.golden_jobs import environment_of, job_of, pods_of

SCRIPT = {"script": "train.py"}
SPEC = TrainerSpec(strategy=runtime("MPI"), batch=BatchSpec(), script="train.py")


def environments(**roles: Any) -> dict[str, dict[str, str]]:
    pods = pods_of({"strategy": "MPI", "trainer": SCRIPT, "roles": roles})
    return {name.removeprefix("job-"): environment_of(pod) for name, pod in pods.items()}


def test_ranks_fill_the_slots_of_the_workers_in_order_and_the_launcher_has_none() -> None:
    pods = environments(worker={"replicas": 2, "processesPerReplica": 3})
    hosts, own_slots = read(pods["launcher-0"][HOSTS])
    assert hostfile(hosts, own_slots=own_slots) == "worker-0 slots=3\nworker-1 slots=3\n"
    assert [pods[name].get("MUSTER_FIRST_RANK") for name in ("launcher-0", "worker-0", "worker-1")] == [None, "0", "3"]
    assert {env["MUSTER_WORLD_SIZE"] for env in pods.values()} == {"6"}
    assert {env["MASTER_ADDR"] for env in pods.values()} == {"worker-0.job.ns.svc"}
    assert pods["worker-1"][PORT] == "7022"


def test_a_launcher_with_a_number_of_processes_has_the_first_ranks() -> None:
    pods = environments(launcher={"processesPerReplica": 2}, worker={"replicas": 1})
    hosts, own_slots = read(pods["launcher-0"][HOSTS])
    assert hostfile(hosts, own_slots=own_slots) == "localhost slots=2\nworker-0 slots=1\n"
    assert (pods["launcher-0"]["MUSTER_FIRST_RANK"], pods["worker-0"]["MUSTER_FIRST_RANK"]) == ("0", "2")
    assert pods["worker-0"]["MUSTER_WORLD_ADDRESS"].startswith("launcher-0.job.ns.svc:")


@pytest.mark.parametrize(
    ("spec", "field", "remedy"),
    [
        ({"trainer": {"task": "digits"}}, "spec.trainer.task", "write script or command"),
        ({"trainer": {"command": ["mpirun", "-np", "2", "./a"]}}, "spec.trainer.command", "Muster starts mpirun itself"),
        ({"trainer": {"command": ["sh", "-c", "cd x && mpiexec ./a"]}}, "spec.trainer.command", "Muster starts mpiexec itself"),
        ({"trainer": {"command": ["/opt/bin/orterun", "./a"]}}, "spec.trainer.command", "Muster starts orterun itself"),
        (
            {"roles": {"worker": {"processesPerReplica": 4, "resources": {"limits": {"nvidia.com/gpu": 2}}}}},
            "spec.roles.worker.processesPerReplica",
            "write at most 2",
        ),
        ({"roles": {"launcher": {"replicas": 2}}}, "spec.roles.launcher.replicas", "must be 1"),
        ({"roles": {"master": {}}}, "spec.roles", "only launcher and worker"),
    ],
)
def test_a_job_that_cannot_work_is_refused_with_a_remedy(spec: dict[str, Any], field: str, remedy: str) -> None:
    found = {each.field: each.message for each in problems(job_of({"strategy": "MPI", "trainer": SCRIPT, **spec}))}
    assert remedy in found[field]


def test_a_job_needs_no_more_than_its_script() -> None:
    assert problems(job_of({"strategy": "MPI", "trainer": SCRIPT})) == []


def test_an_image_without_mpirun_or_with_another_mpi_is_named(tmp_path: Any) -> None:
    with pytest.raises(BadConfiguration, match="mpirun is not found in this image"):
        open_mpi({"PATH": str(tmp_path)})
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(BadConfiguration, match="is not of Open MPI"):
        open_mpi({"PATH": f"{tmp_path}:/bin"})


RULE = "-" * 74
KILLED_4 = [RULE, "mpirun noticed that process rank 1 with PID 17308 on node worker-1 exited on signal 9 (Killed).", RULE]
KILLED_5 = [RULE, "prterun noticed that process rank 1 with PID 8047 on node worker-1 exited on", "signal 9 (Killed).", RULE]
EXITED = "mpirun detected that one or more processes exited with non-zero status, thus causing"
FAILED_4 = [
    RULE,
    EXITED,
    "the job to be terminated. The first process to do so was:",
    "",
    "  Process name: [[12105,1],1]",
    "  Exit code:    3",
    RULE,
]
FAILED_5 = [RULE, EXITED, "", "   Process name: [prterun-vm-9142@1,1]", "   Exit code:    3", RULE]
LOST = [RULE, "ORTE has lost communication with a remote daemon.", "", "  Remote daemon: [[10389,0],2] on node worker-1", RULE]
MISSING = [RULE, "prterun was unable to find the specified executable file, and therefore did", "   Executable: nosuchprog", RULE]
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "ValueError: no such planet"]
PEER = ["RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"]


@pytest.mark.parametrize(
    ("code", "lines", "lost", "expected"),
    [
        (137, KILLED_4, [], (137, 1, "ended by signal 9 (SIGKILL) on worker-1")),
        (137, KILLED_5, [], (137, 1, "ended by signal 9 (SIGKILL) on worker-1")),
        (3, [*TRACEBACK, *FAILED_4], [], (ExitCode.USER_ERROR, 1, "ValueError: no such planet")),
        (3, [*TRACEBACK, *FAILED_5], [], (ExitCode.USER_ERROR, 1, "ValueError: no such planet")),
        (3, [*FAILED_5, *TRACEBACK], [], (ExitCode.USER_ERROR, 1, "ValueError: no such planet")),
        (1, [*PEER, *FAILED_5], [], (ExitCode.PEER_LOST, 1, PEER[0])),
        (205, LOST, [], (ExitCode.PEER_LOST, None, "mpirun has lost its daemon on worker-1 (exit code 205 of mpirun)")),
        (0, [], ["worker-0"], (ExitCode.PEER_LOST, None, "mpirun has lost its daemon on worker-0 (exit code 0 of mpirun)")),
        (255, [], [], (ExitCode.PEER_LOST, None, "mpirun has lost its daemon on a worker (exit code 255 of mpirun)")),
        (66, MISSING, [], (ExitCode.BAD_CONFIGURATION, None, "the program 'nosuchprog' is not in the image of every worker; add it")),
    ],
)
def test_an_end_of_mpirun_has_the_class_and_the_message_of_its_cause(
    code: int, lines: list[str], lost: list[str], expected: tuple[int, int | None, str]
) -> None:
    error = failure(code, Output(lines), SPEC, lost=lost, starting=False)
    assert (error.code, error.failed_rank, error.message) == expected


def test_the_daemon_takes_the_place_of_the_shell_so_that_it_ends_with_its_supervisor() -> None:
    old = "   PATH=/usr/bin:$PATH ; export PATH ;   /usr/bin/orted -mca ess env"
    assert with_exec(old) == "   PATH=/usr/bin:$PATH ; export PATH ;   exec /usr/bin/orted -mca ess env"
    assert with_exec("PRTE_PREFIX=/v;export PRTE_PREFIX;/v/bin/prted --x") == "PRTE_PREFIX=/v;export PRTE_PREFIX;exec /v/bin/prted --x"


def test_only_on_one_machine_collectives_do_not_look_for_neighbours() -> None:
    assert "OMPI_MCA_coll" in variables("agent", one_machine=True)
    assert "OMPI_MCA_coll" not in variables("agent", one_machine=False)


class Worker:
    """A worker that records its commands in place of running them."""

    def __init__(self, identity: Identity, *, times: int) -> None:
        self.commands: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = Host("worker-0", 1, "127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, args=(identity, times), daemon=True)
        self._thread.start()

    def _serve(self, identity: Identity, times: int) -> None:
        for _ in range(times):
            connection, _ = self._listener.accept()
            serve_one(Lines(connection), identity, name="worker-0", run=self._run)

    def _run(self, command: str, connection: socket.socket) -> int | None:
        self.commands.append(command)
        return 7 if len(self.commands) == 1 else None

    def end(self) -> list[str]:
        self._thread.join(20)
        self._listener.close()
        return self.commands


RIGHT = Identity("uid", 1, b"key")


def test_a_worker_runs_one_command_of_its_own_job_and_returns_its_code() -> None:
    worker = Worker(RIGHT, times=2)
    assert run_remotely(worker.host, RIGHT, "orted") == 7
    with pytest.raises(ValueError, match="it has run its command of this attempt"):
        run_remotely(worker.host, RIGHT, "orted")
    worker.end()


@pytest.mark.parametrize("wrong", [Identity("uid", 1, b"other"), Identity("uid", 0, b"key"), Identity("other", 1, b"key")])
def test_a_worker_runs_nothing_for_another_key_attempt_or_job(wrong: Identity) -> None:
    worker = Worker(RIGHT, times=1)
    with pytest.raises((OSError, ValueError)):
        run_remotely(worker.host, wrong, "orted")
    assert worker.end() == []


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b'{"command": 1, "proof": 2}\n', b'{"command": "x", "proof": "\xc3\xa9"}\n', b"\xff\n"])
def test_a_worker_survives_a_hostile_line(line: bytes) -> None:
    worker = Worker(RIGHT, times=2)
    with socket.create_connection((worker.host.address, worker.host.port)) as connection:
        connection.sendall(line)
        connection.makefile("rb").read()
    assert run_remotely(worker.host, RIGHT, "orted") == 7
    worker.end()


def test_a_worker_that_never_answers_is_named_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(PeerLost, match=r"waited 900 s for worker-3, and it does not answer at 127.0.0.1"):
        await_host(Host("worker-3", 1, "127.0.0.1", port), RIGHT, deadline=time.monotonic(), seconds=900)
