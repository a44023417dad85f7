"""Measures what the processes of a replica take of the machine: processors, memory, network and GPUs.

It reads files of /proc. The figures of NVIDIA's GPUs come from `nvidia-smi`, which runs beside the training and prints them now and then,
because a call into a driver that hangs must not hold up the supervisor. What cannot be measured is absent.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster_contract.environment import ReplicaEnvironment
from muster_contract.events import Load
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.process_table import cpu_seconds, descendants
from muster_trainer.supervisor.processes import die_with_parent

SHORTEST, LONGEST = 1.0, 300.0  # seconds between two samples, which grow with the attempt
SAMPLES = 256
"""The interval is this part of the age of the attempt. So an attempt of a month has about ten thousand samples."""
GPU_SECONDS = 5
NVIDIA_DEVICES = Path("/dev")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVIDIA_FOLDER = "/usr/local/nvidia/bin"  # where GKE mounts nvidia-smi
_MIB = 1 << 20
_MOST_READ = 1 << 20


class LoadSampler:
    """The load of one replica in one attempt. The figures of a sample are means since the one before."""

    def __init__(self, replica: ReplicaEnvironment, launches: Sequence[Launch], *, proc: Path = Path("/proc")) -> None:
        """Measures nothing before `start`. `proc` has the network."""
        self._rank = launches[0].rank
        self._has_own_network = replica.coordinator_authority is not None
        """Whether the replica is a pod. Local replicas share the network of the machine, and talk over its loopback interface."""
        self._proc = proc
        self._launches = launches
        self._gpus = _Gpus()
        self._began = self._sampled = math.inf
        self._cpu: dict[int, float] = {}
        self._network: tuple[int, ...] = ()

    def start(self) -> None:
        """Begins to measure."""
        self._gpus.start(self._launches)
        self._began = self._sampled = time.monotonic()
        self._cpu = self._cpu_now()
        self._network = self._network_now()

    @property
    def pids(self) -> frozenset[int]:
        """The process that measures, which is no training process."""
        return self._gpus.pids

    def sample(self) -> Load | None:
        """The load since the last sample, if one is due."""
        now = time.monotonic()
        passed = now - self._sampled
        if passed < min(LONGEST, max(SHORTEST, (now - self._began) / SAMPLES)):
            return None
        self._sampled = now
        cpu, network = self._cpu_now(), self._network_now()
        if not cpu:
            return None  # the system has no /proc
        used = sum(seconds - self._cpu.get(pid, 0.0) for pid, seconds in cpu.items())
        received, sent = self._rates(network, passed)
        gpus = self._gpus.read()
        load = Load(
            time=time.time(),
            rank=self._rank,
            cpus=round(max(0.0, used) / passed, 3),
            memory_bytes=self._memory_now(cpu),
            received_bytes_per_second=received,
            sent_bytes_per_second=sent,
            gpu_share=gpus.share,
            gpu_memory_bytes=gpus.memory_bytes,
        )
        self._cpu, self._network = cpu, network
        return load

    def close(self) -> None:
        """Ends the measuring."""
        self._began = self._sampled = math.inf
        self._gpus.close()

    def _cpu_now(self) -> dict[int, float]:
        """The seconds of the processors that each process of the replica has used, the supervisor included."""
        own = {pid: cpu_seconds(pid) for pid in (os.getpid(), *descendants(os.getpid())) if pid not in self.pids}
        return {pid: seconds for pid, seconds in own.items() if seconds is not None}

    def _memory_now(self, pids: Iterable[int]) -> int:
        """The memory of the processes without that of files, which the kernel can drop."""
        return sum(_memory(pid) for pid in pids)

    def _rates(self, network: tuple[int, ...], passed: float) -> tuple[float | None, float | None]:
        """Bytes a second that were received and sent. None if they cannot be read, or could not at the last sample."""
        if not network or not self._network:
            return None, None
        received, sent = (round(max(0, new - old) / passed, 1) for new, old in zip(network, self._network, strict=True))
        return received, sent

    def _network_now(self) -> tuple[int, ...]:
        """The bytes that all interfaces but loopback have received and sent."""
        received = sent = 0
        if not self._has_own_network:
            return ()
        try:
            for line in (self._proc / "net" / "dev").read_text().splitlines()[2:]:
                name, _, figures = line.partition(":")
                if name.strip() != "lo":
                    fields = figures.split()
                    received, sent = received + int(fields[0]), sent + int(fields[8])
        except (OSError, ValueError, IndexError):
            return ()
        return received, sent


@dataclass(frozen=True)
class _GpuLoad:
    share: float | None = None
    memory_bytes: int | None = None


class _Gpus:
    """The GPUs of a replica, by the lines of `nvidia-smi`: index, per cent of the time in which the GPU was busy, MiB in use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self, launches: Sequence[Launch]) -> None:
        """Starts `nvidia-smi`, if the processes have GPUs."""
        env = launches[0].env
        program = shutil.which("nvidia-smi", path=os.pathsep.join((env.get("PATH", os.defpath), _NVIDIA_FOLDER)))
        chosen = [launch.env.get(_VISIBLE) for launch in launches]
        if program is None or "" in chosen or not any(NVIDIA_DEVICES.glob("nvidia[0-9]*")):
            return
        names = {name.strip() for each in chosen if each for name in each.split(",")}
        ids = [f"--id={','.join(sorted(names))}"] if None not in chosen else []
        query = ["--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits", f"--loop={GPU_SECONDS}"]
        with suppress(OSError, subprocess.SubprocessError):
            self._process = subprocess.Popen(
                [program, *ids, *query],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset() if self._process is None else frozenset((self._process.pid,))

    def read(self) -> _GpuLoad:
        """The mean share of the time in which the GPUs were busy, and their memory in use now, since the last call."""
        shares: list[float] = []
        memories: dict[bytes, int] = {}
        for line in self._lines():
            index, share, memory = (*(field.strip() for field in line.split(b",")), b"", b"")[:3]
            with suppress(ValueError):  # a part of a GPU has no figures
                shares.append(float(share) / 100)
            with suppress(ValueError):
                memories[index] = int(memory) * _MIB
        return _GpuLoad(
            round(min(1.0, max(0.0, sum(shares) / len(shares))), 4) if shares else None, sum(memories.values()) if memories else None
        )

    def _lines(self) -> list[bytes]:
        if self._process is None or self._process.stdout is None:
            return []
        try:
            chunk = os.read(self._process.stdout.fileno(), _MOST_READ)
        except OSError:
            return []  # nothing new
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines

    def close(self) -> None:
        """Ends `nvidia-smi`. Does not wait for it, because a process that waits for a driver ends late. `reap` collects it."""
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
            self._process.kill()
            self._process.poll()


def _memory(pid: int) -> int:
    """The bytes of `RssAnon` and `RssShmem` of a process (proc(5)). 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    except (OSError, ValueError, IndexError):
        return 0
