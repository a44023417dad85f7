"""One `muster run` from its command line to its exit code."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from muster.admission.read import read_job
from muster.api.job import TrainingJob
from muster.local.display import Display, make_display
from muster.local.errors import FieldError
from muster.local.localize import remarks
from muster.local.outcome import ExitCode
from muster.local.overrides import overridden
from muster.local.ports import PortRange
from muster.local.runner import Runner, Settings
from muster.local.start import Start, open_run


@dataclass(frozen=True)
class RunRequest:
    """What the user asked for; see `muster run --help`."""

    job_file: str
    resume: bool = False
    fresh: bool = False
    run_dir: Path | None = None
    ports: str | None = None
    overrides: tuple[str, ...] = ()
    show_logs: bool = False
    quiet: bool = False

    @property
    def command(self) -> str:
        """The command line that names this run again, without --resume and --fresh."""
        options = [
            *(["--run-dir", str(self.run_dir)] if self.run_dir else []),
            *(["--ports", self.ports] if self.ports else []),
            *(word for override in self.overrides for word in ("--set", override)),
        ]
        return shlex.join(["muster", "run", self.job_file, *options])


def run_file(request: RunRequest) -> ExitCode:
    """Runs the job. Raises RunError or InvalidJobError for what keeps it from running; the message names the file where it is at fault."""
    try:
        return _run_file(request)
    except FieldError as error:
        raise FieldError(f"{request.job_file}: {error}") from error


def _run_file(request: RunRequest) -> ExitCode:
    allowed = PortRange.parse(request.ports) if request.ports else None
    job = overridden(read_job(request.job_file), request.overrides)
    display = make_display(quiet=request.quiet, clock=time.monotonic)
    settings = Settings(
        cwd=Path.cwd(),
        job_file=Path(request.job_file),
        again=f"{request.command} --resume",
        ports=allowed,
        show_logs=request.show_logs,
    )
    start = open_run(
        job,
        request.run_dir or Path("runs") / job.metadata.name,
        resume=request.resume,
        fresh=request.fresh,
        now=datetime.now(UTC),
        again=request.command,
        say=display.line,
    )
    return _begun(start, settings, display)


def run_job(job: TrainingJob, directory: Path, *, job_file: Path, display: Display) -> ExitCode:
    """Runs a job that stands in no file of its own, afresh; programs and modules are looked for as if it stood in `job_file`.
    Raises RunError for what keeps it from running."""
    again = "the same command"
    start = open_run(job, directory, resume=False, fresh=True, now=datetime.now(UTC), again=again, say=display.line)
    return _begun(start, Settings(cwd=Path.cwd(), job_file=job_file, again=again), display)


def _begun(start: Start, settings: Settings, display: Display) -> ExitCode:
    """The run, from here to its exit code."""
    try:
        if start.finished:
            again = settings.again.removesuffix(" --resume")
            display.line(f"{start.job.metadata.name} has finished already; nothing to do. Start over with: {again} --fresh")
            return ExitCode.SUCCEEDED
        for remark in remarks(start.job, gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))), job_file=settings.job_file):
            display.line(remark)
        return asyncio.run(_run(start, settings, display))
    finally:
        start.directory.release()


async def _run(start: Start, settings: Settings, display: Display) -> ExitCode:
    return await Runner(start.job, start.directory, settings=settings, display=display).run()
