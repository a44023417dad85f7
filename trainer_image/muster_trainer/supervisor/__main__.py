"""`python -m muster_trainer.supervisor`: run the replica that the environment describes."""

import os

from muster_trainer.supervisor.replica import supervise
from muster_trainer.supervisor.signals import SignalInbox, open_standard_streams

if __name__ == "__main__":
    open_standard_streams()
    # Not sys.exit: a closed stdout or a report that still hangs in the network must change neither code nor time.
    os._exit(supervise(os.environ, SignalInbox()))
