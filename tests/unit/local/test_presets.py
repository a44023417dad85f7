"""Whatever runs a job on this machine takes its preset from a file, and says so if it has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import muster
from muster.api.problems import InvalidJobError
from muster.cli.main import main
from tests.support.local_jobs import job
from tests.support.presets import preset
from tests.support.texts import absent

DIGITS = job(preset="gpus", trainer={"task": "digits"}, batch={"globalSize": 2})
COMMANDS = ["plan job.yaml", "compare compare.yaml", "bench-collectives job.yaml", "run job.yaml"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a job whose preset gives each worker two processes, which its batch is too small for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_PRESETS", raising=False)
    gpus = preset("gpus", roles={"worker": {"resources": {"limits": {"nvidia.com/gpu": 2}}}})
    comparison = {"job": "job.yaml", "variants": [{"strategy": "DDP"}]}
    for name, document in {"job.yaml": DIGITS, "compare.yaml": comparison, "presets.yaml": gpus}.items():
        (tmp_path / name).write_text(yaml.safe_dump(document))
    return tmp_path


def refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 11


@pytest.mark.parametrize("command", COMMANDS)
def test_the_error_without_a_preset_names_the_command_that_gets_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(command.split())
    message = capsys.readouterr().err
    assert absent(message, "job.yaml: spec.preset: ", "kubectl get trainingpreset gpus -o yaml", "--presets") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_fields_of_the_preset(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused([*command.split(), "--presets", "presets.yaml"])
    by_option = capsys.readouterr().err
    assert absent(by_option, "preset gpus", "spec.batch.globalSize") == []
    monkeypatch.setenv("MUSTER_PRESETS", "presets.yaml")
    refused(command.split())
    assert capsys.readouterr().err == by_option


def test_the_job_that_measures_collectives_on_a_cluster_keeps_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench-collectives", "job.yaml", "--manifest"])
    assert ended.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["preset"] == "gpus"


def test_the_python_client_takes_the_file_for_local_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with muster.Client(backend="local") as client, pytest.raises(InvalidJobError, match="Client\\(presets="):
        client.submit(DIGITS)
    with muster.Client(backend="local", presets="presets.yaml") as client, pytest.raises(InvalidJobError, match="with preset gpus"):
        client.submit(DIGITS)
    with pytest.raises(muster.ClientError, match="presets are for backend='local'"):
        muster.Client(presets="presets.yaml")
