"""`python -m muster_trainer.supervisor`: runs the replica that the environment describes."""

import os

from muster_trainer.supervisor.attempts import supervise
from muster_trainer.supervisor.signals import SignalInbox, open_standard_streams

if __name__ == "__main__":
    open_standard_streams()
    # Not sys.exit, because a closed stdout could change the exit code, and a report that hangs in the network could delay the end.
    os._exit(supervise(os.environ, SignalInbox()))
