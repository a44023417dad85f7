"""Reports (supervisor to operator), replies (operator to supervisor), and the termination message of a supervisor.

Documents of training processes are not trusted. Numbers, lists and names out of bounds are refused. Text is cut and its control characters
are escaped, so that the status, Events and logs never contain raw control characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from muster_contract.events import (
    MAX_ATTEMPT,
    MAX_NAME,
    MAX_PROCESSES,
    MAX_RANK,
    MAX_SECONDS,
    MAX_TIME,
    MESSAGE,
    WORD,
    Commit,
    Evaluation,
    Fingerprint,
    Pace,
    Resumed,
    Snapshot,
)
from muster_contract.inputs import MAX_INPUTS, MAX_REVISION, InputProgress
from muster_contract.notices import Notice, notice_of
from muster_contract.wire import LARGEST_INT, document, wire_field

MAX_NOTICES = 50
MAX_FRAMES = 16
FRAME = 256
"""Characters that remain of a stack frame."""
MAX_REPORT = 128 * 1024
"""Bytes of a report. One of 64 processes with all figures has about 90 KiB."""
MAX_REPLY = 256 * 1024
"""Bytes of a reply. The variables of a world have up to 32 KiB each, and the packed ones up to 128 KiB together."""
MAX_TERMINATION_MESSAGE = 4096
"""Bytes of a termination message: Kubernetes keeps no more."""
MAX_INTERVAL = 600.0
MAX_SNAPSHOT_SERVERS = 64
"""Replicas from which a spare copies snapshots. A spare has no room for the parts of more."""
MAX_KEY = 64


class ProcessState(StrEnum):
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPED = "Stopped"
    """A signal such as SIGSTOP has stopped the process for three seconds. A process that a debugger has stopped is `RUNNING`."""
    EXITED = "Exited"


@document
class TerminationMessage:
    """How a replica ended: the termination message, one line of JSON.

    `code` is the meaning of the end and the exit code of the supervisor; `exit_code` and `signal` are what the first failing process
    ended with.
    """

    code: int = wire_field(minimum=0, maximum=255, doc="Exit code of the supervisor.")
    reason: str = wire_field(default="", cut=WORD, doc="Name of `code`.")
    message: str = wire_field(default="", cut=MESSAGE, doc="What happened. The newest part of it that fits.")
    attempt: int | None = wire_field(default=None, minimum=0, maximum=MAX_ATTEMPT, doc="The attempt that ended.")
    rank: int | None = wire_field(default=None, minimum=0, maximum=MAX_RANK, doc="Rank of the first failing process.")
    exit_code: int | None = wire_field(default=None, minimum=-(2**31), maximum=2**31 - 1, doc="Exit code of that process.")
    signal: str | None = wire_field(default=None, cut=WORD, doc="Signal that ended that process.")
    ended_at: float | None = wire_field(default=None, minimum=0, maximum=MAX_TIME, doc="When it ended, Unix seconds.")
    step: int | None = wire_field(default=None, minimum=0, maximum=LARGEST_INT, doc="Steps done.")
    loss: str | None = wire_field(default=None, cut=WORD, doc="Loss of `step`.")
    resumed_step: int | None = wire_field(default=None, minimum=0, maximum=LARGEST_INT, doc="Step that the attempt resumed from.")
    commit: Commit | None = wire_field(default=None, doc="Newest commit of the attempt.")
    evaluation: Evaluation | None = wire_field(default=None, doc="Newest evaluation, with as many metrics as fit.")


@document
class ProcessReport:
    """A training process."""

    rank: int = wire_field(default=0, minimum=0, maximum=MAX_RANK, doc="Global rank.")
    pid: int | None = wire_field(default=None, minimum=0, maximum=MAX_RANK, doc="Process id, in the container.")
    state: ProcessState = wire_field(default=ProcessState.STARTING, doc="Its state. `Stopped`: for 3 s by SIGSTOP.")
    exit_code: int | None = wire_field(default=None, minimum=-(2**31), maximum=2**31 - 1, doc="Exit code, once it has exited.")
    signal: str | None = wire_field(default=None, cut=WORD, doc="Signal that ended it.")


@document
class Progress:
    """The newest step."""

    step: int = wire_field(default=0, minimum=0, maximum=LARGEST_INT, doc="Steps done.")
    total_steps: int | None = wire_field(default=None, minimum=0, maximum=LARGEST_INT, doc="Steps of the whole training.")
    epoch: int | None = wire_field(default=None, minimum=0, maximum=LARGEST_INT, doc="Epochs done.")
    loss: str | None = wire_field(default=None, cut=WORD, doc="The newest loss that was reported.")
    samples_per_second: float | None = wire_field(default=None, minimum=-1e300, maximum=1e300, doc="Rate over the last 20 steps.")
    remaining_seconds: float | None = wire_field(
        default=None, minimum=0, maximum=MAX_SECONDS, doc="Seconds to the end, if the program estimates them itself."
    )
    updated_at: float | None = wire_field(default=None, minimum=0, maximum=MAX_TIME, doc="When the step ended, Unix seconds.")


@document
class Marks:
    """When the processes of the attempt reached these points, Unix seconds."""

    restoring: float | None = wire_field(default=None, minimum=0, maximum=MAX_TIME, doc="The processes have formed a world.")
    resumed: float | None = wire_field(default=None, minimum=0, maximum=MAX_TIME, doc="The checkpoint is restored.")
    stepped: float | None = wire_field(default=None, minimum=0, maximum=MAX_TIME, doc="The first step is done.")


@document
class Stack:
    """The stack of a process in a world that hung, before it was ended."""

    attempt: int = wire_field(minimum=0, maximum=MAX_ATTEMPT, doc="The attempt that hung.")
    rank: int = wire_field(default=0, minimum=0, maximum=MAX_RANK, doc="Global rank.")
    state: str = wire_field(
        default="", cut=WORD, doc="State in the kernel: sleeping, running, disk-sleep, stopped (SIGSTOP), tracing-stop (a debugger)."
    )
    frames: tuple[str, ...] = wire_field(
        default=(), cut=FRAME, max_items=MAX_FRAMES, doc="`function (file:line)` of the main thread, innermost first."
    )
    wait_channel: str = wire_field(default="", cut=WORD, doc="The kernel function in which it sleeps.")
    waits: bool = wire_field(
        default=False, doc="Whether the innermost frame is the framework's own. Then the process most likely waits for other ranks."
    )


@document
class SnapshotServer:
    """Where a supervisor gives the snapshots in its memory to spares of the job."""

    port: int = wire_field(minimum=1, maximum=65535, doc="TCP port.")
    key: str = wire_field(min_length=1, max_length=MAX_KEY, printable=True, doc="Only clients that send it get snapshots.")


@document
class SnapshotSource:
    """A replica of the world from which a spare copies snapshots."""

    host: str = wire_field(min_length=1, max_length=MAX_NAME, printable=True, doc="Its host.")
    server: SnapshotServer = wire_field(doc="Where its supervisor gives snapshots.")


def _notices(value: object) -> object:
    return [notice_of(each) for each in value] if isinstance(value, list) else value


@document
class Report:
    """The state of one replica, as its supervisor posts it. It has the newest event of each kind."""

    job: str = wire_field(max_length=MAX_NAME, printable=True, doc="Namespace and name of the job.")
    pod: str = wire_field(max_length=MAX_NAME, printable=True, doc="Name of the pod.")
    role: str = wire_field(max_length=MAX_NAME, printable=True, doc="Role of the replica.")
    index: int = wire_field(minimum=0, maximum=MAX_RANK, doc="Index of the replica in its role.")
    attempt: int = wire_field(
        minimum=0, maximum=MAX_ATTEMPT, doc="The attempt that the report is about, or whose world the supervisor waits for."
    )
    job_uid: str = wire_field(default="", max_length=MAX_NAME, printable=True, doc="Uid of the job.")
    pod_uid: str = wire_field(default="", max_length=MAX_NAME, printable=True, doc="Uid of the pod.")
    sequence: int = wire_field(
        default=0, minimum=0, maximum=LARGEST_INT, doc="Number of the report. Among reports of an attempt, the highest number counts."
    )
    processes: tuple[ProcessReport, ...] = wire_field(default=(), max_items=MAX_PROCESSES, doc="The processes of the replica.")
    phase: str | None = wire_field(default=None, cut=WORD, doc="Newest `phase`.")
    progress: Progress | None = wire_field(default=None, doc="Newest step.")
    checkpoint: Commit | None = wire_field(default=None, doc="Newest commit.")
    snapshot: Snapshot | None = wire_field(default=None, doc="Newest snapshot in memory.")
    resumed: Resumed | None = wire_field(default=None, doc="Where the attempt began.")
    evaluation: Evaluation | None = wire_field(default=None, doc="Newest evaluation.")
    fingerprints: tuple[Fingerprint, ...] = wire_field(default=(), max_items=MAX_PROCESSES, doc="Software and devices of each process.")
    notices: tuple[Notice, ...] = wire_field(default=(), max_items=MAX_NOTICES, convert=_notices, doc="Messages for the user.")
    marks: Marks = wire_field(default=Marks(), doc="When the processes reached certain points.")
    saved_seconds: float = wire_field(
        default=0.0, minimum=0, maximum=MAX_SECONDS, doc="Seconds in which training waited for the saves of this attempt."
    )
    idle_seconds: float | None = wire_field(
        default=None,
        minimum=0,
        maximum=MAX_SECONDS,
        doc="Seconds since the processes last did a step, a save or an evaluation, or were started, by a monotonic clock.",
    )
    ranks: tuple[Pace, ...] = wire_field(default=(), max_items=MAX_PROCESSES, doc="Newest pace of each rank.")
    stacks: tuple[Stack, ...] = wire_field(default=(), max_items=MAX_PROCESSES, doc="Stacks of the processes of a world that hung.")
    termination: TerminationMessage | None = wire_field(
        default=None,
        formerly="lastWords",
        doc="The termination message about `attempt`. While the supervisor waits for its world, that about the attempt before.",
    )
    waiting: bool = wire_field(default=False, doc="Whether no process is left, and the supervisor waits for the next reply with a world.")
    inputs: tuple[InputProgress, ...] = wire_field(
        default=(), max_items=MAX_INPUTS, doc="Progress of the inputs. Only the init container that fetches them reports it."
    )
    in_place: bool = wire_field(default=False, doc="Whether the supervisor can start another attempt in the same pod.")
    snapshot_server: SnapshotServer | None = wire_field(default=None, doc="Where spares get the snapshots of this replica.")

    @property
    def startable_attempt(self) -> int | None:
        """The attempt whose processes the supervisor starts once it gets their world. None if it does not wait. After a termination
        message about `attempt` it starts only the next one."""
        if not self.waiting:
            return None
        return self.attempt + 1 if self.termination is not None and self.termination.attempt == self.attempt else self.attempt


@document
class NodeNotice:
    """The announcement that a node of the job goes, or takes no new pods."""

    node: str = wire_field(min_length=1, max_length=MAX_NAME, printable=True, doc="Its name.")
    signal: str = wire_field(max_length=MESSAGE, printable=True, doc="What announces it.")
    since: float = wire_field(minimum=0, maximum=MAX_TIME, doc="When it was first seen, Unix seconds.")
    goes: bool = wire_field(default=True, doc="Whether the node goes. If not, it takes no new pods, and may stay.")
    goes_at: float | None = wire_field(default=None, minimum=0, maximum=MAX_TIME, doc="When it goes, Unix seconds. Absent: unknown.")


@document
class Reply:
    """The answer to a report: the attempt that counts, and what the supervisor does next.

    A supervisor of an older attempt ends its processes and reports that it waits. After all members of the next world wait, each reply
    contains `world`.
    """

    attempt: int = wire_field(minimum=0, maximum=MAX_ATTEMPT, doc="The attempt that counts.")
    interval_seconds: float = wire_field(default=1.0, minimum=0, maximum=MAX_INTERVAL, doc="Seconds until the next report.")
    grace_seconds: float | None = wire_field(
        default=None,
        minimum=0,
        maximum=MAX_SECONDS,
        doc="Seconds that processes of an older attempt get to save. Absent: the operator cannot restart in place.",
    )
    dump: bool = wire_field(default=False, doc="Whether the older attempt hung, so that the supervisor first reports the stacks.")
    end: bool = wire_field(default=False, doc="No attempt follows: the supervisor ends its processes and itself.")
    succeeded: bool = wire_field(default=False, doc="Whether no attempt follows because the job has succeeded.")
    revisions: Mapping[str, str] = wire_field(
        default_factory=dict, max_items=MAX_INPUTS, max_length=MAX_REVISION, doc="Revision of each input that the job uses, by name."
    )
    snapshot_sources: tuple[SnapshotSource, ...] = wire_field(
        default=(), max_items=MAX_SNAPSHOT_SERVERS, doc="For a spare: the replicas from which it copies snapshots."
    )
    notice: NodeNotice | None = wire_field(default=None, doc="The most urgent notice of a node of the job, for which the training saves.")
    world: Mapping[str, str] | None = wire_field(
        default=None, max_length=MAX_REPLY, doc="The environment to start the processes of `attempt` with."
    )
