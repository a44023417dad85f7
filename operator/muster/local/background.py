"""Runs one job for another process, such as a notebook: `python -m muster.local.background`, with a Request on standard input.

The other process has the other end of standard input. While the run is attached, the end of standard input means that the other
process has ended or has detached from the run. The run then saves and ends, as after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from muster.admission.read import check_job
from muster.api.problems import InvalidJobError
from muster.local.display import make_display
from muster.local.errors import RunError
from muster.local.rundir import STOP
from muster.local.session import run_job
from muster_contract.codes import ExitCode
from muster_contract.text import escape_on_output


@dataclass(frozen=True)
class Request:
    """What to run."""

    job: dict[str, Any]
    """The data of a job file."""
    job_file: str
    """Path of the job file, which need not exist. Its folder is searched for programs and modules."""
    directory: str
    """The run directory."""
    resume: bool
    """Whether to continue the run in the directory."""
    attached: bool
    """Whether the run ends with standard input."""
    ports: str | None = None
    """The ports that the user allows, such as 30000-30100."""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


def main() -> int:
    """Runs the job. Returns the exit code of `muster run`."""
    escape_on_output()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, STOP):
        signal.signal(number, signal.default_int_handler)  # until the run handles them itself
    request = Request.of(sys.stdin.buffer.readline())
    if request.attached:
        threading.Thread(target=_stop_with_input, name="attached", daemon=True).start()
    try:
        job = check_job(request.job, source=request.job_file)
        display = make_display(quiet=False)
        file, directory = Path(request.job_file), Path(request.directory)
        resume_command = f"muster resume {directory.name}, or resume()"
        return run_job(
            job, directory, job_file=file, display=display, resume=request.resume, resume_command=resume_command, ports=request.ports
        )
    except RunError as error:
        print(error, flush=True)
        return error.code
    except InvalidJobError as error:
        print(error, flush=True)
        return ExitCode.BAD_CONFIGURATION
    except KeyboardInterrupt:
        print("stopped before the job was started", flush=True)
        return ExitCode.PREEMPTED


def _stop_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), STOP)


if __name__ == "__main__":
    sys.exit(main())
