"""Reports of all pods of a job, as their supervisors send them. No process trains."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from muster.api.status import members_in
from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.reports import progress, report, tell, token

STEP = 40
"""The step at which the first attempt resumes. Each attempt does one step, and the next one resumes after it."""


@contextmanager
def supervised(jobs: Jobs, operator: OperatorProcess, name: str) -> Iterator[None]:
    """The running pods of the job report as supervisors do: those of the world have done one step, and the others stand by."""
    ended, tokens, sequences = threading.Event(), dict[str, str](), Counter[str]()

    def tell_all() -> None:
        status = jobs.status(name)
        members = {each.get("uid") for each in members_in(status.get("world", {}))}
        for pod in jobs.pods(name):
            uid = pod["metadata"]["uid"]
            if pod["status"].get("phase") != "Running" or pod["metadata"].get("deletionTimestamp"):
                continue
            if uid not in tokens:
                tokens[uid] = token(jobs, pod)
            sequences[uid] += 1
            attempt = int(status.get("attempt", 0))
            does = _training(attempt) if uid in members else {"phase": "Starting", "waiting": True}
            own = {"attempt": attempt, "inPlace": True, **does}
            tell(operator, tokens[uid], report(pod, sequences[uid], **own))

    def run() -> None:
        while not ended.wait(0.3):
            try:
                tell_all()
            except (ApiError, OSError):
                continue  # the pod is gone meanwhile

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def _training(attempt: int) -> Object:
    return {"phase": "Training", "resumed": {"step": STEP + attempt}, "progress": progress(STEP + attempt + 1)}
