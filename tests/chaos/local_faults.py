"""The faults of a local job, and how the attempt that a fault ends must be recorded."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.local.sweep import RUN_MARK, marked
from muster_contract.checkpoint_layout import MARKER
from tests.chaos.local_job import EVERY, ChaosJob
from tests.support.local_jobs import announce, away
from tests.support.waiting import wait_until

KILLED = frozenset({"ProcessKilled", "PeerLost"})
"""Who hears of it first decides: its own supervisor, or a peer's."""
HOUR = 3600.0


@dataclass(frozen=True)
class Fault:
    """`strike` does it to a job in mid-training and says how many attempts it has ended; at most so many, where workers do not wait for one
    another, and each that is lost may be an attempt of its own.

    These are of `failure_class` (None: they cost nothing) for one of `reasons`; `lost` is how many steps may be done again after each, and
    `spec` is what the job must have for it. `source` is where the next attempt must resume from, as its record says; None: either. The job
    must give notice for the reasons in `notices`.
    """

    strike: Callable[[ChaosJob], int]
    failure_class: str | None = "Infrastructure"
    reasons: frozenset[str] = KILLED
    lost: int = 2 * EVERY - 1  # of an interval, and those done while the commit at its end was being written
    spec: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    notices: frozenset[str] = frozenset()


def kill_process(job: ChaosJob) -> int:
    job.kill(job.other)
    return 1


def kill_rank_0(job: ChaosJob) -> int:
    job.kill(job.first)
    return 1


def kill_supervisor(job: ChaosJob) -> int:
    os.kill(job.supervisor_of(job.replicas[-1]), signal.SIGKILL)  # of a server, where there are some
    return 1


def terminate(job: ChaosJob) -> int:
    """As a pod is that somebody deletes or evicts."""
    os.kill(job.supervisor_of(job.first), signal.SIGTERM)
    return 1


def terminate_in_vain(job: ChaosJob) -> int:
    """The process that is to save does not answer within its grace."""
    job.kill(job.first, signal.SIGSTOP)
    os.kill(job.supervisor_of(job.first), signal.SIGTERM)
    return 1


def stop(job: ChaosJob) -> int:
    job.kill(job.other, signal.SIGSTOP)
    return 1


def kill_all(job: ChaosJob) -> int:
    for pid in [job.supervisor_of(replica) for replica in job.replicas]:  # all pids first, so that the kills come at once
        os.kill(pid, signal.SIGKILL)
    return 1 if job.is_synchronous else len(job.replicas)


def kill_operator(job: ChaosJob) -> int:
    """`muster run` itself; its guard has the rest save and end, and the user starts it again."""
    mark = job.mark
    assert job.process is not None
    job.process.kill()
    job.process.communicate()
    wait_until(lambda: not marked(RUN_MARK, mark), "all processes to end", job.deadline)
    job.resume()
    return 1


def fill_disk(job: ChaosJob) -> int:
    """To the process that saves it is as a full disk is: files cannot grow. After a failed save, there is space again."""
    job.wait_for_event("commit")
    pid, begun = job.pid_of(job.first), time.time()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 10, resource.RLIM_INFINITY))
    job.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed" and event["time"] >= begun)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 0


def tear_checkpoint(job: ChaosJob) -> int:
    """Kills rank 0 while a checkpoint is there and does not count yet; once more, where it was quicker."""
    for attempt in range(5):
        existing = set(job.checkpoints.glob("step-*"))
        torn = wait_until(
            lambda existing=existing: set(job.checkpoints.glob("step-*")) - existing, "a checkpoint", job.deadline, pause=0.0
        ).pop()
        job.kill(job.first, attempt=attempt)
        if not (torn / MARKER).exists():
            return attempt + 1
        job.wait_for_step(0, attempt=attempt + 1)
    raise AssertionError("five checkpoints were each committed before their process could be killed")


def corrupt_checkpoint(job: ChaosJob) -> int:
    """A bit of the newest commit turns over; then a process dies, before there is a newer one."""
    last = max((event["step"] for event in job.events("commit")), default=0)
    job.wait_for_event("commit", lambda event: event["step"] > last)
    newest = max(path.parent for path in job.checkpoints.glob(f"step-*/{MARKER}"))
    victim = max((path for path in newest.iterdir() if path.name != MARKER), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    job.kill(job.first)
    return 1


def announce_node(job: ChaosJob) -> int:
    """The node says that it goes. A local job has no other node, so it only saves at once. Then the notice is withdrawn."""
    begun, pid = time.time(), job.pid_of(job.first)

    def saved() -> bool:
        """Whether it has saved at another step than it always does. If the notice came at such a step, it gets another one."""
        announce(pid, since=time.time())
        return any(event["step"] % EVERY and event["time"] >= begun for event in job.events("commit"))

    wait_until(saved, "a save because of the notice", job.deadline, pause=0.5)
    announce(pid).unlink()
    return 0


def jump(job: ChaosJob) -> int:
    """The clock of all processes jumps ahead by an hour, and later back by two."""
    for step, seconds in ((30, HOUR), (50, -HOUR)):
        job.wait_for_step(step)
        job.move_clock(seconds)
    return 0


def strike_twice(job: ChaosJob) -> int:
    """A process of the new world dies as soon as it is there."""
    job.kill(job.other)
    os.kill(job.pid_of(*job.replicas, attempt=1), signal.SIGKILL)
    return 2


def lose_copy(job: ChaosJob) -> int:
    """A replica ends with its memory: its own snapshots, and the copies of another replica's. It is a server, where there are some."""
    os.kill(job.supervisor_of(job.replicas[-1]), signal.SIGKILL)
    return 1


def take_storage_away(job: ChaosJob) -> int:
    """Checkpoints can be neither read nor written while a replica is lost with its memory and the job resumes."""
    job.wait_for_event("commit")
    with away(job.checkpoints):
        job.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed")
        lose_copy(job)
        job.wait_for_event("step", lambda event: event["attempt"] == 1)
    return 1


SNAPSHOTS = {"checkpoint": {"everySteps": EVERY, "gracePeriodSeconds": 30, "memory": {"everySteps": 1, "sizeMib": 64}}}
LOST = KILLED | {"ReplicaLost"}
FAULTS: Mapping[str, Fault] = {
    "process-killed": Fault(kill_process),
    "rank-0-killed": Fault(kill_rank_0),
    "supervisor-killed": Fault(kill_supervisor, reasons=KILLED | {"ReplicaLost"}),
    "sigterm": Fault(terminate, "Preemption", frozenset({"Preempted"}), lost=0),
    "sigterm-without-enough-grace": Fault(
        terminate_in_vain,
        "Preemption",
        frozenset({"PreemptedNotSaved"}),
        spec={"checkpoint": {"everySteps": EVERY, "gracePeriodSeconds": 1}},
    ),
    "stopped": Fault(stop, reasons=KILLED | {"Hang"}, spec={"recovery": {"hang": {"stepSeconds": 6, "saveSeconds": 60}}}),
    "all-at-once": Fault(kill_all, reasons=KILLED | {"ReplicaLost"}),
    "operator-killed": Fault(kill_operator, None, frozenset({"Suspended"}), lost=0),
    "disk-full": Fault(fill_disk, None, lost=0, notices=frozenset({"SaveFailed"})),
    "checkpoint-torn": Fault(tear_checkpoint),
    "checkpoint-corrupted": Fault(corrupt_checkpoint, lost=3 * EVERY - 1),
    "node-announced": Fault(announce_node, None, lost=0),
    "clock-jump": Fault(jump),
    "second-fault": Fault(strike_twice),
    "copy-lost": Fault(lose_copy, reasons=LOST, lost=0, spec=SNAPSHOTS, source="Memory"),
    "copies-lost": Fault(kill_all, reasons=LOST, spec=SNAPSHOTS, source="Storage", notices=frozenset({"SnapshotIncomplete"})),
    "storage-away": Fault(take_storage_away, reasons=LOST, lost=0, spec=SNAPSHOTS, source="Memory", notices=frozenset({"SaveFailed"})),
}
