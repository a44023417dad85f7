"""How long a training of each engine stands still when something dies: `python -m bench.engines --engines ray mpi`. Prints JSON.

The same training (`bench/plain/engines.py`) runs under `muster run`, and with what the engine has itself to recover. Ray Train starts its
workers again. A lost raylet, mpirun, horovodrun and a program of Spark end, and a loop of the shell starts them again. The figure is the
time from the kill to the first new step of the processes that take over.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.recovery import Lines, Training, against, written
from local_cluster.ports import free_ports
from muster.local.sweep import sweep
from muster_ray.layout import FLAG_OF, GCS, HEAD, HEAD_PORTS, PORTS
from muster_ray.nodes import Cluster, Place
from muster_ray.strategy import FRAMEWORK
from muster_trainer.host.waiting import listens
from tests.support import horovod
from tests.support.local_jobs import LocalJob, job
from tests.support.spark import pyspark_folder
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).with_name("plain") / "engines.py"
TIMEOUT_SECONDS = 900.0
MARK = "BENCH_ENGINES_RUN"
"""The variable that identifies the processes of a training without Muster."""
AGAIN = ("bash", "-c", 'until "$@"; do :; done', "again")
"""The loop of the shell, before the command that it starts."""
STORE_BYTES = 80_000_000
QUICKER = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"}
"""The settings of Muster that make Ray quicker. Ray alone keeps its own."""
STEPS = 5
"""Steps between two kills, at least."""


def after_kills(name: str, folder: Path, fault: Callable[[], None], times: int) -> list[float]:
    """The seconds after each kill in the training of the folder, which are shown as they come, because a run is long."""
    training, taken = Training(Lines(folder, "steps", written), TIMEOUT_SECONDS), []
    training.reaches(STEPS)
    for _ in range(times):
        training.goes_on(STEPS)
        taken.append(stands_still(training, folder / "1.pid", fault))
        print(f"{name}: {taken[-1]:.1f} s", file=sys.stderr, flush=True)
    return taken


def stands_still(training: Training, pid: Path, fault: Callable[[], None]) -> float:
    """Seconds from the fault to the first new step of the processes that take over. Those before them may do some more steps."""
    before, at = pid.stat().st_mtime, time.time()
    fault()
    wait_until(lambda: pid.stat().st_mtime > before, "new training processes", TIMEOUT_SECONDS)
    began = pid.stat().st_mtime
    done = max(step for when, step in training.steps() if when <= began)
    training.reaches(done + 1)
    return min(when for when, step in training.steps() if step == done + 1) - at


def kill_rank(folder: Path) -> None:
    """Kills the training process of rank 1."""
    os.kill(int((folder / "1.pid").read_text()), signal.SIGKILL)


def kill_raylet(node: psutil.Process) -> None:
    next(each for each in node.children(recursive=True) if each.name() == "raylet").kill()


@contextmanager
def muster(folder: Path, engine: str, roles: Mapping[str, Any], env: Mapping[str, str], config: Mapping[str, Any]) -> Iterator[LocalJob]:
    folder.mkdir()
    run = LocalJob(folder)
    limits = {each: {"limit": -1} for each in ("application", "infrastructure", "preemption")}
    strategy = {"mpi": "MPI"}.get(engine, engine.capitalize())
    document = job(strategy=strategy, trainer={"script": f"{PROGRAM} {engine} {folder}", "config": dict(config)}, recovery=limits)
    document["spec"]["roles"] = dict(roles)
    with run.running(run.write(document), env=env) as process:
        yield run
        process.kill()


@contextmanager
def marked(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """An environment for processes that end with the block."""
    mark = uuid.uuid4().hex
    try:
        yield {**os.environ, "OMP_NUM_THREADS": "1", **env, MARK: mark}
    finally:
        sweep(MARK, mark, grace_seconds=0)


def start(words: Sequence[str], env: Mapping[str, str], folder: Path) -> psutil.Process:
    with (folder / "log").open("ab") as log:
        return psutil.Process(subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid)


@contextmanager
def plain_ray(folder: Path) -> Iterator[psutil.Process]:
    """Ray Train without Muster, with `max_failures=-1`. The value is the shell that starts the worker node again whenever it ends."""
    folder.mkdir()
    ports = iter(free_ports(len(HEAD_PORTS) + 2 * len(PORTS)))
    gcs_port = next(ports)
    gcs = f"127.0.0.2:{gcs_port}"
    quiet = {name: value for name, value in FRAMEWORK.default_environment.items() if name not in QUICKER}
    with marked(quiet) as env, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as sockets:

        def node(role: str, own: str, names: Sequence[str], *flags: str) -> psutil.Process:
            numbers = [f"--{FLAG_OF[name]}={gcs_port if name == GCS else next(ports)}" for name in names]
            given = shlex.join([*numbers, f"--object-store-memory={STORE_BYTES}", *flags])
            return start([*AGAIN, *Place(role, 0, gcs, own, local=True).words(given, Path(sockets))], env, folder)

        node(HEAD, "127.0.0.2", [*HEAD_PORTS, *PORTS], "--num-cpus=0", "--include-dashboard=false")
        wait_until(lambda: listens(gcs), "the control service of Ray", TIMEOUT_SECONDS)
        worker, cluster = node("worker", "127.0.0.3", [*PORTS], "--num-cpus=2"), Cluster(gcs)

        def joined() -> bool:
            with suppress(Exception):  # it does not answer yet
                return cluster.nodes() == 2
            return False

        wait_until(joined, "the nodes of Ray", TIMEOUT_SECONDS)
        start([sys.executable, str(PROGRAM), "ray", str(folder)], {**env, "RAY_ADDRESS": gcs, "MAX_FAILURES": "-1"}, folder)
        yield worker


def on_ray(folder: Path, times: int) -> dict[str, Any]:
    """A training process dies, and later the raylet of the worker. Ray Train starts its processes again with Muster, too, if the program
    asks for it. A raylet that is lost ends the attempt."""
    whole, inside, theirs = (folder / name for name in ("whole", "inside", "plain"))
    with ray_under_muster(whole, max_failures=0):
        process = after_kills("Muster, process", whole, lambda: kill_rank(whole), times)
    with ray_under_muster(inside, max_failures=-1) as run:
        by_ray_train = after_kills("Muster, process started by Ray Train", inside, lambda: kill_rank(inside), times)
        raylet = after_kills("Muster, raylet", inside, lambda: kill_raylet(psutil.Process(run.supervisor_of("worker-0"))), times)
    with plain_ray(theirs) as worker:
        own_process = after_kills("Ray Train, process", theirs, lambda: kill_rank(theirs), times)
        own_raylet = after_kills("Ray Train, raylet", theirs, lambda: kill_raylet(worker), times)
    return {
        "process": against(process, rayTrain=own_process),
        "processByRayTrain": against(by_ray_train, rayTrain=own_process),
        "raylet": against(raylet, rayTrain=own_raylet),
    }


def ray_under_muster(folder: Path, *, max_failures: int) -> AbstractContextManager[LocalJob]:
    config = {"rayStartParams": {role: {"object-store-memory": STORE_BYTES} for role in (HEAD, "worker")}}
    roles = {"worker": {"replicas": 1, "processesPerReplica": 2}}
    return muster(folder, "ray", roles, {"MAX_FAILURES": str(max_failures)}, config)


def against_a_restart(
    folder: Path,
    times: int,
    engine: str,
    *,
    roles: Mapping[str, Any],
    words: Sequence[str],
    env: Mapping[str, str],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """A training process dies. Without Muster, `words` start the program, and start it again when it has ended."""
    ours, theirs = folder / "muster", folder / "plain"
    with muster(ours, engine, roles, env, config):
        process = after_kills(f"Muster, {engine}", ours, lambda: kill_rank(ours), times)
    theirs.mkdir()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    with marked({**env, **place}) as environ:
        start([*AGAIN, *words, sys.executable, str(PROGRAM), engine, str(theirs)], environ, theirs)
        own = after_kills(f"{engine}, started again", theirs, lambda: kill_rank(theirs), times)
    return against(process, startedAgain=own)


def on_mpi(folder: Path, times: int) -> dict[str, Any]:
    mpirun = shutil.which("mpirun", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert mpirun, "the bench of MPI needs mpirun of Open MPI"
    words = [mpirun, *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-np", "2", "--bind-to", "none"]
    env = {"PATH": os.pathsep.join((str(Path(mpirun).parent), os.environ["PATH"]))}
    roles = {"launcher": {}, "worker": {"replicas": 2, "processesPerReplica": 1}}
    return against_a_restart(folder, times, "mpi", roles=roles, words=words, env=env, config={})


def on_horovod(folder: Path, times: int) -> dict[str, Any]:
    words = [sys.executable, "-c", "from horovod.runner.launch import run_commandline as run; run()", "-np", "2", "--gloo"]
    env = {"PYTHONPATH": str(horovod.library())}
    return against_a_restart(folder, times, "horovod", roles={"worker": {"replicas": 2}}, words=words, env=env, config={})


def on_spark(folder: Path, times: int) -> dict[str, Any]:
    env = {"PYTHONPATH": str(pyspark_folder())}
    plain = "--master local-cluster[2,1,1024] --conf spark.ui.enabled=false pyspark-shell"
    words = ["env", f"PYSPARK_SUBMIT_ARGS={plain}", f"PYSPARK_PYTHON={sys.executable}"]
    config = {"sparkConf": {"spark.ui.enabled": False}}
    return against_a_restart(folder, times, "spark", roles={"executor": {"replicas": 2}}, words=words, env=env, config=config)


ENGINES: dict[str, Callable[[Path, int], dict[str, Any]]] = {"ray": on_ray, "mpi": on_mpi, "horovod": on_horovod, "spark": on_spark}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="the engines to measure")
    parser.add_argument("--times", type=int, default=3, help="how often each fault is made")
    options = parser.parse_args()
    figures: dict[str, Any] = {"cpus": os.cpu_count(), "times": options.times}
    with tempfile.TemporaryDirectory(prefix="muster-engines-") as name:
        for engine in options.engines:
            folder = Path(name, engine)
            folder.mkdir()
            figures[engine] = {"load": round(os.getloadavg()[0], 1), **ENGINES[engine](folder, options.times)}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
