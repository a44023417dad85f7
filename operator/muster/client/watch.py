"""Shows the progress of a job until it has ended, as `muster run` does."""

from __future__ import annotations

from pydantic import ValidationError

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.client import errors
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.control.cluster import Object
from muster.local.display import Display, make_display
from muster.local.messages import change_lines, success_sentence
from muster.local.outcome import exit_code
from muster_contract.codes import ExitCode


async def watch(connection: Connection, name: str) -> int:
    """Shows the job until it has ended. Returns the exit code, as of `muster run`. Raises NoJobError, also when the job is deleted."""
    display = make_display(quiet=False)
    jobs = Jobs(connection)
    await jobs.get(name)
    before = TrainingJobStatus()
    try:
        async for document in jobs.changes(name):
            if document is None:
                raise errors.NoJobError(f"{name} was deleted")
            job = typed(document)
            for line in change_lines(before, job.status):
                display.line(line)
            display.show(job)
            before = job.status
            if job.status.phase.final:
                return _ended(job, display)
    finally:
        display.close()
    return ExitCode.COMPLETED


def typed(document: Object) -> TrainingJob:
    """The job of the API server. Raises ClientError if this version cannot read it."""
    try:
        job = TrainingJob.model_validate({**document, "status": {}}, by_alias=True, by_name=False)
        return job.with_status(TrainingJobStatus.from_wire(document.get("status") or {}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise errors.ClientError(f"the job cannot be shown: {field}: {first['msg']}; is the operator newer than this command?") from error


def _ended(job: TrainingJob, display: Display) -> int:
    """The last line, and the exit code."""
    display.close()
    name, code = job.metadata.name, exit_code(job.status)
    is_complete = code is ExitCode.COMPLETED
    display.line(success_sentence(job) if is_complete else f"{name} failed: {job.status.message}. See muster explain {name}")
    return code
