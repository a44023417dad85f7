"""Runs one `muster run`, from its command line to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from muster.acceptance.presets import read_with_preset
from muster.admission.read import read_job
from muster.api.job import TrainingJob
from muster.local.display import Display, make_display
from muster.local.errors import FieldError
from muster.local.localize import remarks
from muster.local.overrides import overridden
from muster.local.ports import PortRange
from muster.local.rundir import Place
from muster.local.runner import Runner, Settings
from muster.local.start import Start, open_run
from muster.tools.tracing.otlp import traces
from muster_contract.codes import ExitCode


@dataclass(frozen=True)
class RunRequest:
    """The arguments of the command; see `muster run --help`."""

    job_file: str
    resume: bool = False
    fresh: bool = False
    run_dir: Path | None = None
    ports: str | None = None
    overrides: tuple[str, ...] = ()
    show_logs: bool = False
    quiet: bool = False
    presets: Path | None = None
    to_stderr: bool = False
    """Whether progress and messages go to standard error."""

    @property
    def command(self) -> str:
        """The command line of this run, without --resume and --fresh."""
        options = [
            *(["--run-dir", str(self.run_dir)] if self.run_dir else []),
            *(["--presets", str(self.presets)] if self.presets else []),
            *(["--ports", self.ports] if self.ports else []),
            *(word for override in self.overrides for word in ("--set", override)),
        ]
        return shlex.join(["muster", "run", self.job_file, *options])


def run_file(request: RunRequest) -> tuple[ExitCode, Path]:
    """Runs the job. Returns the exit code and the run directory.

    Raises RunError or InvalidJobError if it cannot run. The message names the job file if that is at fault."""
    try:
        return _run_file(request)
    except FieldError as error:
        raise FieldError(f"{request.job_file}: {error}") from error


def _run_file(request: RunRequest) -> tuple[ExitCode, Path]:
    allowed = PortRange.parse(request.ports) if request.ports else None
    job = read_with_preset(request.job_file, request.presets, overridden(read_job(request.job_file), request.overrides))
    display = make_display(quiet=request.quiet, to_stderr=request.to_stderr)
    settings = Settings(
        cwd=Path.cwd(),
        job_file=Path(request.job_file),
        resume_command=f"{request.command} --resume",
        ports=allowed,
        show_logs=request.show_logs,
    )
    directory = request.run_dir or Path("runs") / job.metadata.name
    start = open_run(
        job,
        directory,
        resume=request.resume,
        fresh=request.fresh,
        now=datetime.now(UTC),
        command=request.command,
        say=display.line,
    )
    return _run_started(start, settings, display), directory


def run_job(
    job: TrainingJob,
    directory: Path,
    *,
    job_file: Path,
    display: Display,
    resume: bool = False,
    resume_command: str = "the same command",
    ports: str | None = None,
) -> ExitCode:
    """Runs a job that has no file of its own. With `resume`, continues the run in the directory. Paths of programs are relative to
    `job_file`. `resume_command` is the command that continues, for messages. Raises RunError if the job cannot run."""
    start = open_run(job, directory, resume=resume, fresh=not resume, now=datetime.now(UTC), command=resume_command, say=display.line)
    allowed = PortRange.parse(ports) if ports else None
    return _run_started(start, Settings(cwd=Path.cwd(), job_file=job_file, resume_command=resume_command, ports=allowed), display)


def _run_started(start: Start, settings: Settings, display: Display) -> ExitCode:
    """Runs the job, and returns its exit code."""
    try:
        if start.finished:
            command = settings.resume_command.removesuffix(" --resume")
            display.line(f"{start.job.metadata.name} has finished. Start over with: {command} --fresh")
            return ExitCode.COMPLETED
        ports = None if settings.ports is None else str(settings.ports)
        start.directory.write_place(Place(str(settings.job_file.absolute()), str(settings.cwd), ports))
        for remark in remarks(start.job, gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))), job_file=settings.job_file):
            display.line(remark)
        return asyncio.run(_run(start, settings, display))
    finally:
        start.directory.release()


async def _run(start: Start, settings: Settings, display: Display) -> ExitCode:
    # The log records of the SDK would disturb the display, and `traces` reports the same.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    with traces(os.environ, refused=display.line, lost=display.line) as tracing:
        if tracing is not None and start.before is not None:
            tracing.record(start.job.with_status(start.before), start.job.status, start.observed)
        return await Runner(start.job, start.directory, settings=settings, display=display, tracing=tracing).run()
