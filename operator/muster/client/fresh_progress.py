"""The steps of a job on a cluster that its status does not have yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from muster.api.constants import INDEX_LABEL, JOB_NAME_LABEL, JOB_UID_LABEL
from muster.api.job import TrainingJob
from muster.api.status import Phase
from muster.client import cuts, errors
from muster.client.connection import Connection
from muster.client.logs import tails_of
from muster_contract.printed import read_epoch_line

FRESH_SECONDS = 5.0
LINES, MOST_BYTES = 50, 1 << 14
"""How much of the end of a log is searched for the newest step."""


class FreshProgress:
    """Shows the steps that rank 0 has printed since the last write of the status.

    The operator writes figures every 30 s, which is rare for a display, and a write for each job every few seconds would load the API
    server (docs/scale.md).
    """

    def __init__(self, connection: Connection, show: Callable[[TrainingJob], None]) -> None:
        self._connection = connection
        self._show = show
        self.job: TrainingJob | None = None
        """The job as the last change has it."""

    async def run(self) -> None:
        """Reads until it is cancelled, or until the user may not read logs."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            try:
                await self.read()
            except errors.NoRightsError:
                return
            except errors.ClientError:
                continue  # the watch reports a cluster that does not answer

    async def read(self) -> None:
        """Shows the job with the newest step in the log of the first replica, if the job runs and the status does not have the step yet."""
        job = self.job
        progress = job.status.progress if job is not None else None
        if job is None or progress is None or job.status.phase is not Phase.RUNNING:
            return
        selector = f"{JOB_NAME_LABEL}={job.metadata.name},{JOB_UID_LABEL}={job.metadata.uid},{INDEX_LABEL}=0"
        pods = await self._connection.items(self._connection.path("v1", "pods"), cuts.pod, labelSelector=selector)
        logs = await tails_of(self._connection, pods, lines=LINES, most_bytes=MOST_BYTES)
        printed = [point for _, lines in logs for line in lines if (point := read_epoch_line(line.text))]
        step, loss = max(printed, default=(0, 0.0))
        if step > progress.step and job is self.job:
            self._show(job.with_status(replace(job.status, progress=replace(progress, step=step, loss=str(loss)))))
