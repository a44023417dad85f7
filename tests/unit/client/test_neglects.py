"""What `muster get` says about jobs that no operator works on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.client import errors, jobs
from muster.client.job_table import jobs_in

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(name: str, *, seconds: float = 40, namespace: str = "team") -> dict[str, Any]:
    """A job on worker-0, whose status was written so many seconds ago."""
    fields = [{"time": (NOW - timedelta(seconds=seconds)).isoformat(), "subresource": "status"}]
    world = {"members": [{"role": "worker", "index": 0, "uid": "lost"}]}
    metadata = {"name": name, "namespace": namespace, "uid": name, "managedFields": fields}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running", "world": world}}


class Connection:
    """A namespace with these pods. Without them, the user may not read pods."""

    namespace = "team"

    def __init__(self, *pods: dict[str, Any], readable: bool = True) -> None:
        self.pods = list(pods)
        self.readable = readable
        self.reads = 0
        self.jobs: dict[str, dict[str, Any]] = {}

    def path(self, _version: str, plural: str, name: str = "") -> str:
        return f"{plural}/{name}"

    async def get(self, path: str) -> dict[str, Any]:
        return self.jobs[path.rpartition("/")[2]]

    async def items(self, _path: str, _cut: object, **_query: str) -> list[dict[str, Any]]:
        self.reads += 1
        if not self.readable:
            raise errors.NoRightsError("pods is forbidden")
        return self.pods


def neglects(connection: Connection, *listing: dict[str, Any]) -> list[str]:
    """The sentences about the jobs of this list, which comes as a Table."""
    connection.jobs = {each["metadata"]["name"]: each for each in listing}
    columns = [{"name": name} for name in ("NAME", "PHASE")]
    rows = [{"cells": [each["metadata"]["name"], each["status"]["phase"]], "object": {"metadata": each["metadata"]}} for each in listing]
    listing = tuple(jobs_in({"columnDefinitions": columns, "rows": rows}))
    return asyncio.run(jobs.Jobs(connection).neglects(listing, now=NOW))  # type: ignore[arg-type]


def test_a_job_without_an_operator_is_named_with_the_pod_that_is_gone() -> None:
    sentence = "digits: no operator has updated this job for 40 s, although worker-0 is gone. See muster explain digits"
    assert neglects(Connection(), job("digits")) == [sentence]


def test_the_first_pods_that_are_gone_are_named_in_a_large_world() -> None:
    large = job("digits")
    large["status"]["world"] = {"membersByRole": [{"role": "worker", "indexes": "0-199", "uids": ["=lost"] * 200}]}
    assert "although worker-0, worker-1, worker-2 and 197 more are gone" in neglects(Connection(), large)[0]


@pytest.mark.parametrize(
    ("connection", "listed"),
    [
        (Connection({"metadata": {"name": "digits-worker-0", "uid": "lost"}}), job("digits")),
        (Connection(readable=False), job("digits")),
        (Connection(), job("digits", seconds=10)),
        (Connection(), job("digits", namespace="other")),
    ],
    ids=["its pod is there", "pods cannot be read", "its status is new", "it is in another namespace"],
)
def test_without_a_proof_there_is_no_sentence(connection: Connection, listed: dict[str, Any]) -> None:
    assert neglects(connection, listed) == []


def test_the_pods_of_few_jobs_are_read() -> None:
    connection = Connection()
    assert len(neglects(connection, *(job(f"digits-{number}") for number in range(100)))) == connection.reads == jobs.MOST_SUSPECTS
