"""Jobs that are made to stop the operator, beside honest ones: these run, and the others are answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.api_server.api import JOBS, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Nodes
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.waiting import wait_until

PATIENTLY = {"seconds": 300.0, "pause": 0.5}
"""Each look at a job of 1 MB costs the API server, and the process of the tests, a large part of a second."""
PLACE = '"@"'
CONFIG = "spec.trainer.config"
TEMPLATE = "spec.roles.worker.template"


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def deep_lists(levels: int) -> str:
    return '{"a":' + "[" * levels + "]" * levels + "}"


def wide(size: int) -> str:
    """JSON of so many bytes, all of it empty lists: parsed, it takes fifty times as much memory."""
    return '{"x":[[]' + ",[]" * ((size - 10) // 3) + "]}"


def hostile(name: str, text: str, *, field: str = CONFIG) -> bytes:
    """A job with this JSON in one of its free fields; `json` itself cannot write what is deeper than Python's stack."""
    given: Object = (
        {"trainer": {"task": "digits", "config": "@"}} if field == CONFIG else {"roles": {"worker": {"template": {"spec": "@"}}}}
    )
    return json.dumps(job(name, **given)).replace(PLACE, text).encode()


HOSTILE: dict[str, tuple[str, str]] = {
    "deep-100": (deep(100), CONFIG),
    "deep-600": (deep(600), CONFIG),
    "deep-1100": (deep(1_100), CONFIG),
    "deep-9900": (deep(9_900), CONFIG),
    "deep-lists": (deep_lists(9_900), CONFIG),
    "deep-template": (f'{{"affinity":{deep(1_100)}}}', TEMPLATE),
    "wide": (wide(1_000_000), CONFIG),
    "wide-template": (f'{{"affinity":{wide(1_000_000)}}}', TEMPLATE),
    "wide-and-deep": (f'{{"a":{wide(900_000)},"b":{deep(2_000)}}}', CONFIG),
}
ODD: dict[str, str] = {
    "odd-text": r'{"a":"\ud800","b":"\u0000","c":"\u202e\ufeff\u2028","\ud83d":"\udfff","d":"\\u0000"}',
    "odd-numbers": '{"a":1e308,"b":-0.0,"c":99999999999999999999999999,"d":1e-400,"e":18446744073709551616}',
    "odd-nulls": '{"a":null,"":{"":null}}',
}


@pytest.fixture
def submitted(jobs: Jobs) -> Iterator[list[str]]:
    """The names of the hostile jobs that were submitted."""
    names: list[str] = []
    yield names
    for name in names:
        jobs.delete(name)


def submit_hostile(jobs: Jobs, names: list[str]) -> None:
    for name, (text, field) in HOSTILE.items():
        jobs.api.request("POST", JOBS.format(jobs.namespace), hostile(name, text, field=field))
        names.append(name)
    for name, text in ODD.items():
        jobs.api.request("POST", JOBS.format(jobs.namespace), hostile(name, text))
        names.append(name)


def status_of(jobs: Jobs, name: str) -> Object:
    """The status of a job that may be too deep to be parsed whole: it comes last in the API server's JSON."""
    answer = jobs.get(name)
    if "text" not in answer:
        return dict(answer.get("status") or {})
    _, found, status = answer["text"].rpartition('"status":{"')
    return dict(json.loads('{"' + status.rstrip()[:-1])) if found else {}


def answered(jobs: Jobs) -> None:
    """Each hostile job is not valid, and says which field is to blame; the odd ones have an answer."""
    for name, (_, field) in HOSTILE.items():
        status = wait_until(
            lambda name=name: condition(status_of(jobs, name), "Valid") and status_of(jobs, name), f"{name} is answered", **PATIENTLY
        )
        valid = condition(status, "Valid")
        assert (valid["status"], field in valid["message"]) == ("False", True), (name, valid)
        assert re.search("levels deep|bytes as JSON|too many values", valid["message"]), (name, valid)
    for name in ODD:
        wait_until(lambda name=name: condition(status_of(jobs, name), "Valid"), f"{name} is answered")


def runs(jobs: Jobs, name: str, *, seconds: float = 180.0) -> None:
    jobs.submit(job(name, workers=1))
    jobs.reaches(name, "Running", seconds=seconds)


def resynced(operator: OperatorProcess) -> None:
    """Waits until everything was listed once more."""
    seen = last_resync(operator)
    wait_until(lambda: last_resync(operator) > seen, "everything is listed again", seconds=180)


def last_resync(operator: OperatorProcess) -> float:
    found = re.search(r"^muster_resync_timestamp_seconds (\S+)$", operator.figures(), re.MULTILINE)
    return float(found[1]) if found else 0.0


@contextmanager
def well(operator: OperatorProcess) -> Iterator[None]:
    """The operator neither ends nor breaks on anything meanwhile."""
    assert operator.process
    process = operator.process
    yield
    said = operator.log.read_text()
    assert process.poll() is None, said[-3000:]
    assert operator.probe("healthz")[0] == 200
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:3000]


def test_hostile_jobs_do_not_block_other_jobs_at_the_start_or_at_a_resync(
    cluster: Cluster, jobs: Jobs, nodes: Nodes, submitted: list[str], tmp_path: Path
) -> None:
    submit_hostile(jobs, submitted)
    jobs.submit(job("waits", workers=1))
    with operating(cluster, tmp_path / "operator", resyncSeconds=2) as operator, well(operator):
        jobs.reaches("waits", "Running", seconds=180)
        answered(jobs)
        resynced(operator)
        runs(jobs, "later")


def test_hostile_jobs_do_not_block_other_jobs_while_the_operator_runs(
    cluster: Cluster, jobs: Jobs, nodes: Nodes, submitted: list[str], tmp_path: Path
) -> None:
    with operating(cluster, tmp_path / "operator", resyncSeconds=3) as operator, well(operator):
        runs(jobs, "before")
        submit_hostile(jobs, submitted)
        runs(jobs, "beside")
        answered(jobs)
        resynced(operator)
        runs(jobs, "after")
        wait_until(lambda: jobs.events("deep-9900"), "an Event")
        assert [event["reason"] for event in jobs.events("deep-9900")] == ["Invalid"]


def test_the_status_of_a_hostile_job_is_written_without_a_change_of_its_spec(
    jobs: Jobs, submitted: list[str], operator: OperatorProcess
) -> None:
    text = wide(100_000)
    jobs.api.request("POST", JOBS.format(jobs.namespace), hostile("wide", text))
    submitted.append("wide")
    before = jobs.get("wide")
    wait_until(lambda: condition(jobs.status("wide"), "Valid"), "it is answered")
    after = jobs.get("wide")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    owners = {each["manager"]: "f:spec" in each["fieldsV1"] for each in after["metadata"]["managedFields"]}
    assert sorted(owners.values()) == [False, True], owners  # the one who made it still owns the spec, and the operator does not
    jobs.patch("wide", {"spec": {"trainer": {"config": {"x": None}}}})
    wait_until(lambda: condition(jobs.status("wide"), "Valid")["status"] == "True", "it is valid once it is corrected")


def test_the_operator_survives_the_deletion_of_its_crd(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    definitions, name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "trainingjobs.muster.dev"

    def is_gone() -> bool:
        return name not in [each["metadata"]["name"] for each in cluster.admin.get(definitions)["items"]]

    with operating(cluster, tmp_path / "operator", resyncSeconds=1) as operator, well(operator):
        runs(jobs, "before")
        cluster.admin.delete(f"{definitions}/{name}")
        try:
            wait_until(lambda: re.search(r'requests_total{status="404",verb="WATCH"} \d', operator.figures()), "the watch of jobs ends")
        finally:
            wait_until(is_gone, "the definition is gone")
            cluster.install()
        runs(jobs, "after")


LARGE = 9
CROWDED = 20
ENOUGH_MIB = 400  # kept whole, the jobs would take 500 MiB, the crowded ones 540 more, and the chart's limit is 1,024


def crowded(name: str) -> Object:
    """A job of 320 KB, each part of it with less than 64 KiB and very many values."""
    part = {"x": [{"": 0}] * 9_200}
    roles = {role: {"template": {"spec": part}} for role in ("chief", "evaluator", "ps", "worker")}
    return job(name, strategy="ParameterServer", suspend=True, trainer={"task": "digits", "config": part}, roles=roles)


def most_memory_mib(operator: OperatorProcess) -> float:
    """The most memory that the operator has had since it was started."""
    assert operator.process
    text = Path(f"/proc/{operator.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found
    return int(found[1]) / 1024


def test_large_jobs_are_not_kept_in_memory(cluster: Cluster, jobs: Jobs, nodes: Nodes, submitted: list[str], tmp_path: Path) -> None:
    for number in range(LARGE):
        jobs.api.request("POST", JOBS.format(jobs.namespace), hostile(f"large-{number}", wide(1_000_000)))
        submitted.append(f"large-{number}")
    for number in range(CROWDED):
        jobs.submit(crowded(f"crowded-{number}"))
        submitted.append(f"crowded-{number}")
    with operating(cluster, tmp_path / "operator", resyncSeconds=5) as operator, well(operator):
        for name in submitted:
            wait_until(lambda name=name: condition(jobs.status(name), "Valid").get("status") == "False", f"{name} is answered", **PATIENTLY)
        resynced(operator)
        for name in submitted:
            jobs.patch(name, {"metadata": {"labels": {"touched": "yes"}}})  # they come by the watch now
        runs(jobs, "honest")
        assert most_memory_mib(operator) < ENOUGH_MIB
