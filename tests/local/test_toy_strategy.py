"""A strategy of another package: installed, listed, rendered and run, without a change in Muster."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from muster.strategies.registry import GROUP, load
from tests.toy_strategy.install import TOY, installed


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed(tmp_path_factory.mktemp("toy"))


def muster(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "muster.cli", *arguments], env=env, capture_output=True, text=True, timeout=120)


def test_its_job_is_refused_where_it_is_not_installed() -> None:
    done = muster("validate", str(TOY / "job.yaml"), env=dict(os.environ))
    assert done.returncode == 11
    assert "spec.strategy" in done.stderr + done.stdout


def test_its_manifests_have_its_role_and_its_config_map(environment: dict[str, str]) -> None:
    done = muster("render", str(TOY / "job.yaml"), env=environment)
    assert done.returncode == 0, done.stderr
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    assert [kind for kind, _ in objects] == ["ConfigMap", "Service", "Pod", "Pod", "Pod"]
    hosts = "worker-0.relay.default.svc:7070\nworker-1.relay.default.svc:7070\n"
    assert objects["ConfigMap", "relay-hostfile"]["data"] == {"hosts": hosts}
    launcher = objects["Pod", "relay-launcher-0"]["spec"]
    assert {"name": "object-hostfile", "configMap": {"name": "relay-hostfile"}} in launcher["volumes"]
    [container] = launcher["containers"]
    assert {"name": "object-hostfile", "mountPath": "/run/muster-objects/hostfile", "readOnly": True} in container["volumeMounts"]
    assert {"name": "MUSTER_OBJECTS", "value": "/run/muster-objects"} in container["env"]


def test_it_runs_on_this_machine(environment: dict[str, str], tmp_path: Path) -> None:
    done = muster("run", str(TOY / "job.yaml"), "--run-dir", str(tmp_path / "run"), env=environment)
    logs = "".join(file.read_text() for file in sorted((tmp_path / "run").rglob("log.txt")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "launcher: 2 workers gave 385" in logs


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_package:X", "cannot be loaded: ModuleNotFoundError"),
        ("muster.strategies.registry:GROUP", "it is a str"),
        ("muster.strategies.torchrun:DDP", "there is another strategy DDP"),
    ],
)
def test_a_strategy_that_cannot_be_used_is_left_out_with_its_reason(value: str, reason: str) -> None:
    strategies, [refused] = load([EntryPoint("Bad", value, GROUP)])
    assert reason in refused
    assert "DDP" in strategies
