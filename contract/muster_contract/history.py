"""The history that a replica writes beside the checkpoints, so that users can look at a job after its pods are gone.

DIRECTORY/history/FENCE/ROLE-INDEX/log.txt       the last lines that its processes printed
DIRECTORY/history/FENCE/ROLE-INDEX/events.jsonl  its events, with fewer steps if there are many
DIRECTORY/history/FENCE/ROLE-INDEX/replica.json  a ReplicaRecord. It is written last

DIRECTORY is the job's folder in its checkpoint storage. The fence in the name keeps attempts, and jobs of one name, apart.
"""

from __future__ import annotations

from datetime import datetime

from muster_contract.events import MAX_ATTEMPT, MAX_NAME, MAX_RANK, MAX_TIME, WORD
from muster_contract.reports import TerminationMessage
from muster_contract.wire import document, wire_field

LOG = "log.txt"
EVENTS = "events.jsonl"
RECORD = "replica.json"

STORED_ATTEMPTS = 10
"""The number of attempts whose history is stored. The status of a job has as many."""
LOG_LINES = 200
LOG_LINE = 1000
"""Characters of a line of the log."""
MOST_LOG_BYTES = 1 << 20
MOST_EVENT_BYTES = 2 << 20
MOST_RECORD_BYTES = 1 << 14


@document
class ReplicaRecord:
    """The identity of the replica, when its attempt ran, and how the attempt ended for it."""

    job: str = wire_field(max_length=MAX_NAME, printable=True, doc="Namespace and name of the job.")
    job_uid: str = wire_field(max_length=MAX_NAME, printable=True, doc="Uid of the job.")
    job_created: datetime = wire_field(doc="Creation time of the job.")
    strategy: str = wire_field(cut=WORD, doc="Strategy of the job.")
    role: str = wire_field(max_length=MAX_NAME, printable=True, doc="Role of the replica.")
    index: int = wire_field(minimum=0, maximum=MAX_RANK, doc="Index of the replica in its role.")
    attempt: int = wire_field(minimum=0, maximum=MAX_ATTEMPT, doc="The attempt.")
    began: float = wire_field(minimum=0, maximum=MAX_TIME, doc="When its processes were started, in Unix seconds.")
    ended: float = wire_field(minimum=0, maximum=MAX_TIME, doc="When they had ended, in Unix seconds.")
    every_step: bool = wire_field(default=True, doc="Whether the events have every step.")
    termination: TerminationMessage | None = wire_field(default=None, formerly="lastWords", doc="How the attempt ended for the replica.")
