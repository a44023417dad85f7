"""Whether a command works on a run of this machine or on a job of a cluster."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from muster.admission.yaml_text import write_yaml
from muster.client import errors
from muster.client.either_backend import EitherBackend
from muster.client.job_text import jobs_as
from muster.client.local_backend import LocalJob
from tests.support.texts import absent
from tests.unit.local.local_jobs import job

HERE = (None, None, None)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the only run, where there is no cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "missing")
    directory = tmp_path / "runs" / "tiny"
    directory.mkdir(parents=True)
    metadata = {"name": "tiny", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    (directory / "job.yaml").write_text(write_yaml({"metadata": metadata, "spec": job().spec.wire()}))
    return directory


@pytest.mark.parametrize("name", ["tiny", "runs/tiny", "./runs/tiny/"])
def test_a_name_in_runs_and_a_path_are_runs(name: str, run: Path) -> None:
    assert isinstance(asyncio.run(EitherBackend(HERE).get(name)), LocalJob)


def test_a_namespace_chooses_the_cluster(run: Path) -> None:
    with pytest.raises(errors.NoClusterError):
        asyncio.run(EitherBackend(("team", None, None)).get("tiny"))


@pytest.mark.parametrize("name", ["..", ".", "runs/..", "tini", ""])
def test_no_other_name_leads_to_a_run(name: str, run: Path) -> None:
    (run.parent.parent / "job.yaml").write_text((run / "job.yaml").read_text())
    with pytest.raises(errors.NoJobError):
        asyncio.run(EitherBackend(HERE).get(name))


def test_a_job_of_a_cluster_cannot_pass_for_a_run(run: Path) -> None:
    [document] = asyncio.run(EitherBackend(HERE).documents(all_namespaces=False, whole=True))
    foreign = {**document, "metadata": {**document["metadata"], "namespace": "team"}}
    shown = jobs_as("name", [document, foreign], now=datetime.now(UTC))
    assert shown == "runs/tiny\ntrainingjobs.muster.dev/tiny\n"


def test_a_cluster_that_does_not_answer_hides_no_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = run.parent / "kubeconfig"
    broken.write_text("[]")
    monkeypatch.setenv("KUBECONFIG", str(broken))

    async def listed() -> tuple[int, list[str]]:
        backend = EitherBackend(HERE)
        documents = await backend.documents(all_namespaces=False, whole=False)
        return len(documents), await backend.neglects(documents, now=datetime.now(UTC))

    count, [note] = asyncio.run(listed())
    assert (count, absent(note, "jobs of the cluster are missing", "no cluster")) == (1, [])
