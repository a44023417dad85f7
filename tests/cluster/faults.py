"""What befalls a job in the tests, and what must have become of it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from local_cluster.errors import CommandFailedError
from tests.support.cluster_jobs import EVERY, STEPS, ClusterJob, Manifest, world_is_ready

REPLICAS = ("worker-0", "worker-1")
Strike = Callable[[ClusterJob, str], None]


@dataclass(frozen=True)
class Moment:
    """When and whom it hits, drawn from a seed: never right at a commit, so that something is at stake."""

    step: int
    replica: str

    @classmethod
    def of(cls, seed: int | str, *, first: int = 30, last: int = 180, replicas: Sequence[str] = REPLICAS) -> Moment:
        """A step of (first, last) that is 5 to 15 beyond a commit, and a replica."""
        draw = random.Random(seed)
        commit = draw.randrange(first, last) // EVERY * EVERY
        return cls(commit + draw.randrange(5, 16), draw.choice(replicas))


def evict(job: ClusterJob, replica: str) -> None:
    """Through the eviction API, as a drain does."""
    ground = job.ground
    name = f"{job.name}-{replica}"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": ground.namespace}}
    path = f"/api/v1/namespaces/{ground.namespace}/pods/{name}/eviction"
    ground.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def delete(job: ClusterJob, replica: str) -> None:
    job.ground.kubectl("delete", "pod", f"{job.name}-{replica}", "--wait=false")


def kill_container(job: ClusterJob, replica: str) -> None:
    job.ground.cluster.kill_container(job.ground.namespace, f"{job.name}-{replica}", "trainer")


def kill_all(job: ClusterJob) -> None:
    """Kills the trainer containers of the first world at once: a pod that is made before the last one is killed would hold copies again."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda each: kill_container(job, each), job.replicas))


IN_POD = """
import glob, json, os, resource, signal, time

def trains(process):
    # Processes that wait for the next attempt have the same words, because they are forked from the same parent. But their stdout is still
    # the supervisor's.
    try:
        words = open(f"/proc/{process}/cmdline").read().split("\\0")
        parent = open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1]
        stdout, stdout_of_parent = (os.readlink(f"/proc/{each}/fd/1") for each in (process, parent))
        return stdout != stdout_of_parent and not {"muster_trainer.warm", "muster_trainer.process"}.isdisjoint(words)
    except (OSError, IndexError):  # it has ended meanwhile, or was started from outside
        return False

def trainer():
    while not (pids := [int(name) for name in os.listdir("/proc") if name.isdigit() and trains(name)]):
        time.sleep(0.01)
    return max(pids)

def new(pattern):
    pattern = os.path.join(json.loads(os.environ["MUSTER_TRAINER"])["checkpoint"]["directory"], pattern)
    known = set(glob.glob(pattern))
    while not (found := set(glob.glob(pattern)) - known):
        pass
    return found.pop()

pid = trainer()
"""
"""What programs that are run in a replica's container begin with."""
FILL = """
with open("/dev/shm/filling", "wb", buffering=0) as file:
    while trains(pid):
        file.write(bytes(1 << 20))
"""
TEAR = """
checkpoint = new("step-*")
os.kill(pid, signal.SIGKILL)
print("counts" if os.path.exists(f"{checkpoint}/COMMITTED") else "torn")
"""
CORRUPT = """
marker = new("step-*/COMMITTED")
victim = max((path for path in glob.glob(f"{os.path.dirname(marker)}/*") if path != marker), key=os.path.getsize)
with open(victim, "r+b") as file:
    file.seek(os.path.getsize(victim) // 2)
    byte = file.read(1)[0]
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte ^ 1]))
os.kill(pid, signal.SIGKILL)
"""


def in_pod(program: str) -> Strike:
    """Runs it in the replica's container, with the id of the training process as `pid`."""

    def strike(job: ClusterJob, replica: str) -> None:
        job.ground.kubectl("exec", f"{job.name}-{replica}", "--container", "trainer", "--", "python", "-c", IN_POD + program)

    return strike


kill_process = in_pod("os.kill(pid, signal.SIGKILL)")
stop_process = in_pod("os.kill(pid, signal.SIGSTOP)")


def fill_disk(job: ClusterJob, replica: str) -> None:
    """To the process that saves it is as a full disk is: files cannot grow. After a failed save, there is space again."""
    job.wait_for_event("commit")
    begun = time.time()
    in_pod("resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, -1))")(job, replica)
    job.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed" and event["time"] >= begun)
    in_pod("resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))")(job, replica)


def run_out_of_memory(job: ClusterJob, replica: str) -> None:
    """Fills the container's memory with a file that no process owns, so that the kernel ends the largest processes, until the training is
    one of them.

    The command that fills it may end with the container, and fail with it.
    """
    where = ("--namespace", job.ground.namespace, f"{job.name}-{replica}", "--container", "trainer")
    attempt, end = job.status["attempt"], "it ended"
    try:
        job.ground.cluster.kubectl("exec", *where, "--", "python", "-c", IN_POD + FILL)
    except CommandFailedError as error:
        end = str(error)
    job.wait_until(f"{replica} has run out of memory; the command that fills it: {end}", lambda status: status["attempt"] > attempt)


def delete_too_soon(job: ClusterJob, replica: str) -> None:
    """The process that is to save does not answer within the grace of the deletion."""
    stop_process(job, replica)
    job.ground.kubectl("delete", "pod", f"{job.name}-{replica}", "--wait=false", "--grace-period=1")


def delete_all(job: ClusterJob, replica: str) -> None:
    """With one request: kubectl takes as long for each pod as a recovery takes to begin, and then each is another failure."""
    path = f"/api/v1/namespaces/{job.ground.namespace}/pods?labelSelector=muster.dev/job-name%3D{job.name}"
    job.ground.cluster.kubectl("delete", "--raw", path)


def kill_again(job: ClusterJob, replica: str) -> None:
    attempt = job.status["attempt"]
    kill_process(job, replica)
    job.wait_until("a second world", lambda status: world_is_ready(status, attempt=attempt + 1))
    kill_process(job, job.members[0])


def cut_network(job: ClusterJob, replica: str) -> None:
    """Between it and rank 0 nothing comes through until the world is given up: the next one comes up between the same pods."""
    cluster, attempt = job.ground.cluster, job.status["attempt"]
    pods = [job.pod(name) for name in (job.members[0], replica)]
    one, other = (pod["status"]["podIP"] for pod in pods)
    rules = [
        (pod["spec"]["nodeName"], "FORWARD", "--source", source, "--destination", goal, "--jump", "DROP")
        for pod in pods
        for source, goal in ((one, other), (other, one))
    ]
    for node, *rule in rules:
        cluster.execute(node, "iptables", "--insert", *rule)
    try:
        job.wait_until("another attempt", lambda status: status.get("attempt", 0) > attempt)
    finally:
        for node, *rule in rules:
            cluster.execute(node, "iptables", "--delete", *rule)


@dataclass(frozen=True)
class Fault:
    """What is done to a replica, the class that must be counted, and the reasons that tell it truly."""

    strike: Strike
    failure_class: str
    reasons: frozenset[str]
    saves: bool = False
    """Whether it leaves the replicas time to save, so that no step is lost."""
    times: int = 1
    """How many attempts it ends."""
    whom: str = "any"
    """Which replica it hits: any, rank 0's (`first`) or one that is not rank 0's (`other`)."""
    spec: Manifest = field(default_factory=dict)
    """What the job must have for it."""

    def of(self, replicas: Sequence[str]) -> Sequence[str]:
        """Those that it may hit."""
        return {"first": replicas[:1], "other": replicas[1:] or replicas}.get(self.whom, replicas)


LOST = frozenset({"ProcessKilled", "PeerLost"})
"""The others lose their peer before the kubelet or its supervisor reports its end. By then Muster may have stopped all of them."""
TAKEN_AWAY = frozenset({"Disrupted", "Evicted", "PodDeleted", "Preempted", "PreemptedNotSaved", "ReplicaLost", "NodeLost"})
IMPATIENT: Manifest = {"recovery": {"hang": {"stepSeconds": 10, "saveSeconds": 60}}}
DELETED = frozenset({"PodDeleted", "Preempted"})
FAULTS = {
    "process-killed": Fault(kill_process, "Infrastructure", LOST, whom="other"),
    "rank-0-killed": Fault(kill_process, "Infrastructure", LOST, whom="first"),
    # a supervisor that is gone is silent, which may show before a busy kubelet reports the end of its container
    "supervisor-killed": Fault(kill_container, "Infrastructure", LOST | {"NodeLost"}),
    "sigterm-without-enough-grace": Fault(delete_too_soon, "Preemption", DELETED | {"PreemptedNotSaved"}),
    "stopped": Fault(stop_process, "Infrastructure", frozenset({"Hang", "PeerLost"}), spec=IMPATIENT),
    "pod-deleted": Fault(delete, "Preemption", DELETED, saves=True),
    "pod-evicted": Fault(evict, "Preemption", frozenset({"Disrupted", "Evicted", "Preempted"}), saves=True),
    "all-at-once": Fault(delete_all, "Preemption", DELETED, saves=True),
    "network-cut": Fault(cut_network, "Infrastructure", frozenset({"Hang", "PeerLost"}), whom="other", spec=IMPATIENT),
    "disk-full": Fault(fill_disk, "Infrastructure", frozenset(), whom="first", times=0),
    "checkpoint-torn": Fault(in_pod(TEAR), "Infrastructure", LOST, whom="first"),
    "checkpoint-corrupted": Fault(in_pod(CORRUPT), "Infrastructure", LOST, whom="first"),
    "second-fault": Fault(kill_again, "Infrastructure", LOST, whom="other", times=2),
    "out-of-memory": Fault(run_out_of_memory, "Application", frozenset({"OutOfMemory"})),
}


def check_attempt(
    job: ClusterJob, attempt: int, *, failure_class: str, reasons: frozenset[str], saves: bool = False, damaged: bool = False
) -> None:
    """An attempt ended for that reason. The next one resumed from the newest commit, or the one before if that is damaged. Processes that
    survived, and snapshots in memory, have a later step."""
    records = {record["attempt"]: record for record in job.attempts}
    ended, following = records[attempt], records[attempt + 1]
    assert ended["class"] == failure_class, ended
    assert ended["reason"] in reasons, ended
    if not job.is_synchronous:
        assert following["stepsLost"] < 2 * EVERY, following
        return  # a replica that was left alone resumes nothing
    commit = job.newest_commit(attempt)
    resumed = job.resumed_step(attempt + 1)
    assert following["stepResumed"] == resumed, following
    if following.get("resumedFrom", "Storage") == "Storage":
        # A process may end, or lose its peers, after a commit and before it reports it.
        assert resumed in ((commit - EVERY, commit) if damaged else (commit, commit + EVERY)), following
        assert following["stepCommitted"] == resumed + (EVERY if damaged else 0), following
    else:
        assert resumed >= commit, following
        assert following["stepsLost"] == 0, following
    if saves:
        assert following["stepsLost"] == 0, following
        assert commit >= ended["lastStep"], ended  # they train on until all have agreed to stop
        doubts = [
            condition for condition in job.status["conditions"] if condition["type"] == "GraceSufficient" and condition["status"] == "False"
        ]
        assert doubts == []


def check_succeeded(job: ClusterJob, like: ClusterJob, *, attempts: int | None = None, **counts: int) -> None:
    """It succeeded, with the losses of an undisturbed job, and its restarts are counted by class."""
    job.check_succeeded(like.losses())
    assert job.status["progress"]["step"] == STEPS
    if attempts is not None:
        assert job.status["attempt"] == attempts - 1, job.attempts
        job.check_restarts(**counts)
