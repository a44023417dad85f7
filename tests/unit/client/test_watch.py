"""The progress that `muster watch` shows between two writes of the status."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.client.connection import Connection
from muster.client.fresh_progress import FreshProgress

POD = {
    "metadata": {
        "name": "digits-worker-0",
        "namespace": "team",
        "uid": "p",
        "labels": {"muster.dev/role": "worker", "muster.dev/index": "0"},
    },
    "spec": {"containers": [{"name": "trainer"}]},
    "status": {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]},
}


class Cluster:
    namespace = "team"

    def __init__(self, *lines: str) -> None:
        self.log = "".join(f"2030-01-01T00:00:0{number}Z {line}\n" for number, line in enumerate(lines))
        self.selectors: list[str] = []

    def path(self, _version: str, plural: str, name: str = "", *, subresource: str = "") -> str:
        return f"{plural}/{name}/{subresource}"

    async def items(self, _path: str, _cut: object, *, labelSelector: str) -> list[dict[str, Any]]:  # noqa: N803  the name of the API
        self.selectors.append(labelSelector)
        return [POD]

    async def text(self, _path: str, **_query: str) -> str:
        return self.log


def shown(cluster: Cluster, *, step: int | None, phase: str = "Running") -> list[tuple[int, str | None]]:
    """The steps and losses that are shown after one look at the log. The status has this step."""
    document = {"metadata": {"name": "digits", "uid": "j"}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}
    status = {"phase": phase, **({} if step is None else {"progress": {"step": step, "loss": "0.5"}})}
    steps: list[tuple[int, str | None]] = []

    def show(job: TrainingJob) -> None:
        assert job.status.progress is not None
        steps.append((job.status.progress.step, job.status.progress.loss))

    fresh = FreshProgress(cast("Connection", cluster), show)
    fresh.job = TrainingJob.model_validate(document).with_status(TrainingJobStatus.from_wire(status))
    asyncio.run(fresh.read())
    return steps


LINES = ("epoch 1 of 9: step 20, loss 0.4000", "a line of the user", "epoch 2 of 9: step 40, loss 0.2500, accuracy 0.9")


def test_a_step_that_the_status_does_not_have_yet_is_shown() -> None:
    cluster = Cluster(*LINES)
    assert shown(cluster, step=7) == [(40, "0.25")]
    assert "muster.dev/index=0" in cluster.selectors[0]


@pytest.mark.parametrize(
    ("lines", "step", "phase"),
    [
        pytest.param(LINES, 40, "Running", id="the status has it"),
        pytest.param(LINES, None, "Running", id="before the first step"),
        pytest.param(LINES, 7, "Recovering", id="the job does not run"),
        pytest.param(("a line of the user",), 7, "Running", id="a program that prints no epochs"),
    ],
)
def test_nothing_is_shown_twice_or_for_a_job_that_does_not_run(lines: tuple[str, ...], step: int | None, phase: str) -> None:
    assert shown(Cluster(*lines), step=step, phase=phase) == []
