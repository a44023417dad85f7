"""Other machines cannot reach a PyTorch job of `muster run`, because its processes listen on loopback only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.local.loopback import SITE
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
def test_every_process_of_a_torch_job_listens_on_loopback_only(
    local_job: LocalJob, trainer: dict[str, Any], spec: dict[str, Any], ready: Callable[[LocalJob], bool]
) -> None:
    local_job.write(job(trainer=trainer, **spec))
    with local_job.running("job.yaml") as run:
        wait_until(lambda: ready(local_job), "the world to train")
        sockets = listening([psutil.Process(run.pid), *marked(RUN_MARK, local_job.mark)])
        assert len(sockets) >= 3, sockets  # the channel of `muster run`, the store, and gloo's
        assert all(ip_address(address).is_loopback for address, _ in sockets), sockets


def in_python(program: str, *, cwd: Path, **environ: str) -> Any:
    """The JSON output of a Python program that is started as a process of a run."""
    path = os.pathsep.join([str(SITE), *([environ.pop("PYTHONPATH")] if "PYTHONPATH" in environ else [])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, **environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


STORES = """
import json, psutil, socket, sys
from datetime import timedelta
from torch.distributed import TCPStore
def free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
found = {}
def listens(port):
    return [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
for libuv in (True, False):
    port = free()
    store = TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=30), True, True, use_libuv=libuv)
    shared = TCPStore("127.0.0.1", port, 1, True, multi_tenant=True, use_libuv=libuv, wait_for_workers=False)
    store.set("key", "value")
    assert shared.get("key") == b"value" and isinstance(store, TCPStore)
    found[f"libuv {libuv}"] = listens(port)
    any_port = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
    found[f"any port, libuv {libuv}"] = listens(any_port.port)
taken = socket.create_server(("127.0.0.1", 0))
try:
    TCPStore("127.0.0.1", taken.getsockname()[1], 1, True)
except RuntimeError as error:
    found["taken"] = "EADDRINUSE" in str(error)
print(json.dumps(found))
"""


@pytest.mark.torch
def test_a_store_of_any_kind_listens_on_loopback_and_is_what_it_was_otherwise(tmp_path: Path) -> None:
    on_loopback = ["127.0.0.1"]
    assert in_python(STORES, cwd=tmp_path) == {
        "libuv True": on_loopback,
        "any port, libuv True": on_loopback,
        "libuv False": on_loopback,
        "any port, libuv False": on_loopback,
        "taken": True,
    }


def test_a_sitecustomize_of_the_users_own_is_run_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = __name__, __file__\n")
    program = "import json, sys, sitecustomize; print(json.dumps([*sys.own, sitecustomize.__file__]))"
    own = str(tmp_path / "sitecustomize.py")
    assert in_python(program, cwd=tmp_path, PYTHONPATH=str(tmp_path)) == ["sitecustomize", own, own]


def test_a_torch_that_is_too_old_to_take_a_socket_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/distributed.py").write_text(
        "class TCPStore:\n    def __init__(self, host_name, port, world_size=None, is_master=False):\n        self.port = port\n"
    )
    program = "import json, torch.distributed as dist; print(json.dumps(dist.TCPStore('127.0.0.1', 7, 1, True).port))"
    assert in_python(program, cwd=tmp_path) == 7


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
