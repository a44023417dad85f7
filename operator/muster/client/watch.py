"""Shows the progress of a job until it has ended, as `muster run` does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.client import errors
from muster.client.async_job import AsyncJob
from muster.local.display import Display, make_display
from muster.local.messages import change_lines, success_sentence
from muster.local.outcome import exit_code
from muster_contract.codes import ExitCode


async def watch(job: AsyncJob) -> int:
    """Shows the job until it has ended. Returns the exit code, as of `muster run`. Raises NoJobError when the job is deleted, and
    JobStoppedError when a local run is stopped."""
    display = make_display(quiet=False)
    before = TrainingJobStatus()
    fresh = job.fresh_progress(display.show)
    reading = asyncio.create_task(fresh.run()) if fresh else None
    try:
        async with aclosing(job.changes()) as changes:
            async for now in changes:
                if now is None:
                    raise errors.NoJobError(f"{job.name} was deleted")
                for line in change_lines(before, now.status):
                    display.line(line)
                if fresh is not None:
                    fresh.job = now
                display.show(now)
                before = now.status
                if now.status.phase.final:
                    return _ended(now, display)
    finally:
        if reading is not None:
            reading.cancel()
        display.close()
    return ExitCode.COMPLETED


def _ended(job: TrainingJob, display: Display) -> int:
    """The last line, and the exit code."""
    display.close()
    name, code = job.metadata.name, exit_code(job.status)
    is_complete = code is ExitCode.COMPLETED
    display.line(success_sentence(job) if is_complete else f"{name} failed: {job.status.message}. See muster explain {name}")
    return code
