"""Other machines reach only the store of a PyTorch job of `muster run`. The rest of its processes listens on loopback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.local.sweep import RUN_MARK, marked
from tests.support.local_jobs import LocalJob, job
from tests.support.waiting import wait_until

WORLD = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group(backend="gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor, group=group)
Path(f"joined-{int(tensor)}-{dist.get_rank()}").touch()
time.sleep(600)
"""
BUNDLED = {"task": "digits", "config": {"epochs": 100000}}
RPC = {"strategy": "RPC", "roles": {"chief": {}, "worker": {}, "ps": {}}, "batch": {"globalSize": 64}}
TORCHRUN = {"roles": {"worker": {"replicas": 2, "processesPerReplica": 1}}}


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "world.py").write_text(WORLD)
    return LocalJob(tmp_path)


def joined(local_job: LocalJob) -> bool:
    return len(list(local_job.folder.glob("joined-2-*"))) == 2


def trains(local_job: LocalJob) -> bool:
    return local_job.step > 0


def listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    """The addresses and ports on which these processes listen."""
    sockets = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    sockets.append((connection.laddr.ip, connection.laddr.port))
    return sockets


def store_port(local_job: LocalJob) -> int:
    """The port at which rank 0 of the running job has its store."""
    ports = set()
    for process in marked(RUN_MARK, local_job.mark):
        with suppress(psutil.NoSuchProcess):
            environ = process.environ()
            ports |= {int(environ[name]) for name in ("MASTER_PORT", "PET_MASTER_PORT") if name in environ}
    [port] = ports
    return port


@pytest.mark.torch
@pytest.mark.parametrize(
    ("trainer", "spec", "ready"),
    [
        pytest.param(BUNDLED, {"batch": {"globalSize": 64}}, trains, id="the bundled trainer"),
        pytest.param(BUNDLED, RPC, trains, id="remote calls", marks=pytest.mark.thorough),
        pytest.param({"script": "world.py"}, {}, joined, id="a script", marks=pytest.mark.thorough),
        pytest.param({"command": ["torchrun", "world.py"]}, TORCHRUN, joined, id="a torchrun", marks=pytest.mark.thorough),
    ],
)
def test_a_torch_job_listens_on_loopback_only_apart_from_its_store(
    local_job: LocalJob, trainer: dict[str, Any], spec: dict[str, Any], ready: Callable[[LocalJob], bool]
) -> None:
    local_job.write(job(trainer=trainer, **spec))
    with local_job.running("job.yaml") as run:
        wait_until(lambda: ready(local_job), "the world to train")
        sockets = listening([psutil.Process(run.pid), *marked(RUN_MARK, local_job.mark)])
        assert len(sockets) >= 3, sockets  # the channel of `muster run`, the store, and gloo's
        open_ports = {port for address, port in sockets if not ip_address(address).is_loopback}
        assert open_ports <= {store_port(local_job)}, sockets


def test_a_program_may_listen_wherever_it_likes(local_job: LocalJob) -> None:
    """A script that uses the port of its world in its own way, as JAX does."""
    (local_job.folder / "serve.py").write_text(
        "import os, socket, sys, time\n"
        "address = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "if os.environ['RANK'] == '0':\n"
        "    with socket.create_server(('', address[1])) as server:\n"
        "        server.accept()[0].sendall(b'hello')\n"
        "else:\n"
        "    while True:\n"
        "        try:\n"
        "            connection = socket.create_connection(address)\n"
        "            break\n"
        "        except OSError:\n"
        "            time.sleep(0.05)\n"
        "    print('HEARD', connection.recv(5).decode())\n"
    )
    local_job.write(job(trainer={"script": "serve.py"}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    assert "HEARD hello" in local_job.logs()
