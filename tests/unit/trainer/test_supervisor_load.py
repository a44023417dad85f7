"""What a supervisor measures of its replica."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from muster_contract.environment import ReplicaEnvironment
from muster_contract.events import Load
from muster_trainer.supervisor import load as module
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.load import LoadSampler
from tests.support.waiting import wait_until
from tests.unit.trainer.test_supervisor_trackers import replica

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

BUSY = "data = bytearray(64 << 20)\ndata[::4096] = b'x' * (len(data) // 4096)\nprint('ready', flush=True)\nwhile True: pass\n"
NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: {lo} 1 0 0 0 0 0 0 {lo} 1 0 0 0 0 0 0
  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0
"""
POD = {"coordinator_authority": "a certificate"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST", 0.05)


@contextmanager
def sampler(of: ReplicaEnvironment | None = None, env: dict[str, str] | None = None, proc: Path = Path("/proc")) -> Iterator[LoadSampler]:
    with closing(LoadSampler(of or replica(), [Launch(rank=3, argv=(), env=env or {})], proc=proc)) as made:
        made.start()
        yield made


def next_load(of: LoadSampler) -> Load:
    return wait_until(of.sample, "a sample")


def test_a_process_of_the_replica_shows_in_its_processors_and_memory() -> None:
    with sampler() as idle:
        before = next_load(idle)
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
            try:
                assert busy.stdout is not None
                busy.stdout.readline()
                used = psutil.Process(busy.pid).cpu_times().user
                with sampler() as measured:
                    wait_until(lambda: psutil.Process(busy.pid).cpu_times().user > used + 0.1, "some work")
                    load = next_load(measured)
            finally:
                busy.kill()
    assert load.cpus > 0.01
    assert load.rank == 3
    assert load.memory_bytes > before.memory_bytes + (60 << 20)
    assert (load.received_bytes_per_second, load.sent_bytes_per_second, load.gpu_share, load.gpu_memory_bytes) == (None,) * 4


def test_a_pod_has_the_traffic_of_its_interfaces_without_loopback(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    figures = tmp_path / "net" / "dev"
    figures.write_text(NETWORK.format(lo=0, received=1000, sent=5000))
    with sampler(replica(**POD), proc=tmp_path) as measured:
        figures.write_text(NETWORK.format(lo=10**9, received=3000, sent=5000))
        load = next_load(measured)
        assert load.received_bytes_per_second is not None
        assert 0 < load.received_bytes_per_second <= 2000 / module.SHORTEST
        assert load.sent_bytes_per_second == 0
        figures.unlink()
        assert next_load(measured).sent_bytes_per_second is None


def gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> dict[str, str]:
    """The variables of a process whose `nvidia-smi` prints these lines, and notes its arguments."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho \"$@\" > {folder}/arguments\nprintf '{lines}'\nexec sleep 1000\n")
    program.chmod(0o755)
    (folder / "nvidia0").touch()
    monkeypatch.setattr(module, "NVIDIA_DEVICES", folder)
    return {"PATH": f"{folder}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "1,0"}


def test_gpus_have_their_mean_share_and_all_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = gpus(tmp_path, monkeypatch, r"0, 90, 1000\n1, 30, 500\n0, 100, 2000\n1, [N/A], 600\n1, 4")
    with sampler(env=env) as measured:
        load = wait_until(lambda: load if (load := measured.sample()) and load.gpu_share is not None else None, "the figures of the GPUs")
        [pid] = measured.pids
        assert "--id=0,1 " in (tmp_path / "arguments").read_text()
    assert load.gpu_share == pytest.approx((0.9 + 0.3 + 1.0) / 3, abs=1e-3)
    assert load.gpu_memory_bytes == 2600 << 20
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "the end of nvidia-smi")
    assert measured.sample() is None


def test_a_replica_without_gpus_asks_nothing_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = gpus(tmp_path, monkeypatch, "")
    with sampler(env={**env, "CUDA_VISIBLE_DEVICES": ""}) as measured:
        assert measured.pids == frozenset()
    (tmp_path / "nvidia0").unlink()
    with sampler(env=env) as measured:
        assert measured.pids == frozenset()


def test_samples_become_rare_in_a_long_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000
    monkeypatch.setattr(module, "SHORTEST", 1.0)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(module, "descendants", lambda _: [])
    times = []
    with sampler() as measured:
        for now in range(1000, 2500):
            if measured.sample() is not None:
                times.append(now)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:200] == [1] * 200
    assert gaps[-1] == 6
    assert len(times) < 750
