"""The Docker engine: the one of this machine, or one that this package runs.

The engine of this package is Debian's dockerd. Its data is in the cache, so that images and build layers stay. All its other files are in
/run/muster-cluster. A stop restores the machine, because it removes the processes, bridges, packet rules, control groups and mounts of the
engine.
"""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from . import firewall
from .errors import ClusterError
from .machine import has_sys_resource, require_linux_root
from .places import FOLDER, RUN, Places
from .process import run, succeeds
from .progress import say, step

SOCKET = RUN / "docker.sock"
PID_FILE = RUN / "dockerd.pid"
SNAPSHOT = RUN / "packet-rules.json"
NEW_TRACES = RUN / "traces"
TRACES = ("/run/docker/plugins", "/run/docker", "/etc/docker/key.json", "/etc/docker")  # dockerd creates these and does not remove them
BRIDGE = "muster0"
NETWORK = "kind"
SUBNETS = ("172.30.0.0/24", "172.31.255.0/24", "10.213.0.0/24")
CGROUP = "muster-cluster"
PACKAGES = {"dockerd": "docker.io", "debootstrap": "debootstrap", "iptables": "iptables"}
START_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers.

    Attributes:
        own: whether this package runs the engine, and may stop it.
        environment: variables that point docker and kind at it.
    """

    own: bool
    environment: dict[str, str] = field(default_factory=dict)

    def docker(self, *arguments: str | Path, timeout: float = 60, stdin: str | None = None) -> str:
        """Runs the docker client."""
        return run(["docker", *arguments], timeout, env=self.environment, stdin=stdin)

    def has_image(self, image: str) -> bool:
        """Whether the engine has an image of that name."""
        return succeeds(["docker", "image", "inspect", image], 60, env=self.environment)


def running() -> Engine | None:
    """The engine that answers now: the one of this package if it runs, or else the one that the docker client uses by default."""
    for engine in (Engine(own=True, environment={"DOCKER_HOST": f"unix://{SOCKET}"}), Engine(own=False)):
        if (not engine.own or SOCKET.exists()) and succeeds(["docker", "version"], 20, env=engine.environment):
            return engine
    return None


def ensure(places: Places) -> Engine:
    """An engine that answers. If there is none, installs and starts one.

    Raises:
        ClusterError: there is none, and this machine does not allow one. The message has the remedy.
    """
    return running() or _start(places)


def stop(places: Places) -> None:
    """Stops the engine of this package and removes what it left on the machine. Its images stay in the cache. Does nothing if there is no
    engine."""
    if not RUN.exists():
        return
    with step("stopping the engine"):
        pid = _own_pid()
        if pid is not None:
            _end(pid)
        for mounted in sorted(_mounts_below(RUN, places.engine), reverse=True):
            run(["umount", "--lazy", mounted], 30)
        for bridge in (BRIDGE, "docker0"):
            succeeds(["ip", "link", "delete", bridge], 30)
        if SNAPSHOT.exists():
            firewall.Snapshot.read(SNAPSHOT).restore()
        _remove_cgroups()
        _remove_traces()
        shutil.rmtree(RUN)


def install(programs: dict[str, str]) -> None:
    """Installs Debian packages for the missing programs.

    Raises:
        ClusterError: there is no apt or no root, or the installation failed.
    """
    missing = sorted({package for program, package in programs.items() if _which(program) is None})
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    require_linux_root(f"installing {', '.join(missing)}")
    if shutil.which("apt-get") is None:
        raise ClusterError(f"{', '.join(missing)} must be installed and this machine has no apt-get: install them by hand, or start Docker")
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:  # prevents that the package starts a second dockerd, deb-systemd-invoke(1p)
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        with step(f"installing {', '.join(missing)}"), Places.default().using_apt():
            environment = {"DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update"], 600, env=environment)
            run(command, 900, env=environment)
    finally:
        if ours:
            policy.unlink()


def _start(places: Places) -> Engine:
    require_linux_root("running a Docker engine of our own")
    install(PACKAGES)
    if RUN.exists():
        say("an earlier engine did not end cleanly; removing what it left")
        stop(places)
    RUN.mkdir(mode=0o700)
    places.logs.mkdir(parents=True, exist_ok=True)
    firewall.Snapshot.take().write(SNAPSHOT)
    NEW_TRACES.write_text("\n".join(trace for trace in TRACES if not Path(trace).exists()))
    engine = Engine(own=True, environment={"DOCKER_HOST": f"unix://{SOCKET}"})
    command = [
        *[_which("dockerd") or "dockerd", "--data-root", str(places.engine), "--exec-root", str(RUN / "exec"), "--pidfile", str(PID_FILE)],
        *["--host", f"unix://{SOCKET}", "--cgroup-parent", f"/{CGROUP}", *_runtime(places)],
    ]
    with step("starting a Docker engine"), (places.logs / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + START_TIMEOUT
        while not succeeds(["docker", "version"], 20, env=engine.environment):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"the Docker engine did not start; see {places.logs / 'dockerd.log'}, then try again")
            time.sleep(0.2)
    _ensure_network(engine)
    return engine


def _runtime(places: Places) -> list[str]:
    if has_sys_resource():
        return []
    runtime = places.bin / "runc-without-sys-resource"
    places.bin.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER / runtime.name, runtime)  # the engine may outlive this checkout, which another one then uses
    return ["--add-runtime", f"reduced={runtime}", "--default-runtime", "reduced"]


def _ensure_network(engine: Engine) -> None:
    """Creates the network that kind uses. Its bridge has a fixed name and no way out of the machine."""
    if not succeeds(["docker", "network", "inspect", NETWORK], 30, env=engine.environment):
        routes = run(["ip", "-4", "route"], 30)
        subnet = next((each for each in SUBNETS if each.rpartition(".")[0] not in routes), None)
        if subnet is None:
            raise ClusterError(f"this machine has routes to all of {', '.join(SUBNETS)}: remove one, the cluster needs a subnet of its own")
        engine.docker("network", "create", "--subnet", subnet, "--opt", f"com.docker.network.bridge.name={BRIDGE}", NETWORK)
    firewall.close_off(BRIDGE)


def _own_pid() -> int | None:
    """The pid of this package's dockerd. None if the process with the recorded pid is another one."""
    try:
        pid = int(PID_FILE.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(PID_FILE).encode() in command else None


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    while _runs(pid):
        if time.monotonic() > deadline:
            raise ClusterError(f"dockerd (pid {pid}) did not end within {STOP_TIMEOUT:.0f} s; look at what it does, end it, and try again")
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _mounts_below(*folders: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [point for point in points if any(point.startswith(f"{folder}/") for folder in folders)]


def _remove_cgroups() -> None:
    for top in [*Path("/sys/fs/cgroup").glob(f"*/{CGROUP}"), Path("/sys/fs/cgroup") / CGROUP]:
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)


def _remove_traces() -> None:
    for trace in map(Path, NEW_TRACES.read_text().split() if NEW_TRACES.exists() else ()):
        if trace.is_file():
            trace.unlink()
        elif trace.is_dir() and not any(trace.iterdir()):
            trace.rmdir()


def _which(program: str) -> str | None:
    """The path of a program, also in folders that are only on root's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
