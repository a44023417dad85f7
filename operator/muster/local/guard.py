"""`python -m muster.local.guard MARK SECONDS`: ends what a run leaves behind, should `muster run` die in whatever way.

It holds the reading end of a pipe whose other end only `muster run` has. When that end closes, by an orderly end or by
SIGKILL, everything that carries the run's mark gets SIGTERM, SECONDS to
save, and SIGKILL. It lives in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.
"""

from __future__ import annotations

import os
import signal
import sys

from muster.local.sweep import RUN_MARK, sweep


def main(mark: str, grace_seconds: float) -> int:
    """Waits for the end of standard input, then sweeps."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    return 1 if sweep(RUN_MARK, mark, grace_seconds=grace_seconds) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
