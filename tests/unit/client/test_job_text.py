"""Jobs as tables, JSON, YAML and names."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from muster.client.job_text import age, jobs_as

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB = {
    "metadata": {"name": "digits", "namespace": "team", "creationTimestamp": "2026-01-01T11:00:00Z", "managedFields": [{}]},
    "spec": {"strategy": "DDP"},
    "status": {
        "phase": "Running",
        "workers": "2/2",
        "progress": {"step": 3, "percent": 30, "loss": "0.5"},
        "restarts": {"total": 1},
        "message": "attempt 1 trains\x1b[31m",
    },
}


def test_a_table_has_the_columns_of_kubectl_and_no_control_characters() -> None:
    header, row = jobs_as("table", [JOB], now=NOW, namespaced=True).splitlines()
    names = "NAMESPACE NAME STRATEGY PHASE QUEUED WORKERS STEP % LOSS RESTARTS AGE MESSAGE"
    assert header.split() == names.split()
    assert row.split()[:10] == ["team", "digits", "DDP", "Running", "2/2", "3", "30", "0.5", "1", "60m"]
    assert "\x1b" not in row


def test_a_job_that_waits_in_a_queue_says_where() -> None:
    waiting = {**JOB, "status": {"phase": "Pending", "queue": {"name": "team-a", "summary": "3 in team-a"}}}
    assert "Pending   3 in team-a" in jobs_as("table", [waiting], now=NOW)


def test_a_job_without_a_status_has_a_row() -> None:
    bare = {"metadata": JOB["metadata"], "spec": JOB["spec"]}
    assert jobs_as("table", [bare], now=NOW).splitlines()[1].split() == ["digits", "DDP", "Pending", "60m"]


def test_json_and_yaml_have_one_object_or_a_list() -> None:
    assert json.loads(jobs_as("json", [JOB], now=NOW, single=True))["metadata"]["name"] == "digits"
    assert [each["metadata"]["name"] for each in yaml.safe_load(jobs_as("yaml", [JOB, JOB], now=NOW))["items"]] == ["digits", "digits"]
    assert jobs_as("name", [JOB], now=NOW) == "trainingjobs.muster.dev/digits\n"


@pytest.mark.parametrize(("passed", "shown"), [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "120m"), (20000, "5h"), (200000, "2d")])
def test_ages_are_written_as_by_kubectl(passed: int, shown: str) -> None:
    assert age(timedelta(seconds=passed)) == shown
