"""Helm, and the chart rendered with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]  # tests are not installed

from chart_variants import CHART, Manifest, Render  # noqa: E402
from tests.cluster import harness  # noqa: E402


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs helm, which the harness builds where its cache has it not; without Go that is an error, not a skip."""
    programs = harness.Programs(harness.Places.default())
    programs.ensure(["helm"])

    def run(*arguments: str, values: Manifest | None = None) -> subprocess.CompletedProcess[str]:
        stdin = ["--values", "-"] if values is not None else []
        command = [str(programs.path("helm")), *arguments, *stdin]
        return subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """The objects of the chart for some values, as release `muster` in namespace `muster-system`."""

    def manifests(values: Manifest | None = None, *, hooks: bool = True) -> list[Manifest]:
        options = [] if hooks else ["--no-hooks"]
        done = helm("template", "muster", str(CHART), "-n", "muster-system", "--kube-version=1.34", *options, values=values or {})
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return manifests


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """kubectl on an API server without nodes."""
    with harness.api_server(harness.Places.default()) as kubeconfig:
        program = harness.Programs(harness.Places.default()).path("kubectl")
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

        def run(*arguments: str, objects: list[Manifest] | None = None) -> subprocess.CompletedProcess[str]:
            command = [str(program), *arguments, *(["-f", "-"] if objects is not None else [])]
            stdin = yaml.safe_dump_all(objects) if objects is not None else None
            return subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, timeout=60, check=False)

        yield run
