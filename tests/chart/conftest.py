"""Helm, and the chart rendered with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

import local_cluster
from tests.chart.chart_variants import CHART, Manifest, Render


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs helm, which local_cluster builds where its cache has it not; without Go that is an error, not a skip."""
    programs = local_cluster.Programs(local_cluster.Places.default())
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
    with local_cluster.api_server(local_cluster.Places.default()) as kubeconfig:
        program = local_cluster.Programs(local_cluster.Places.default()).path("kubectl")
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

        def run(*arguments: str, objects: list[Manifest] | None = None) -> subprocess.CompletedProcess[str]:
            command = [str(program), *arguments, *(["-f", "-"] if objects is not None else [])]
            stdin = yaml.safe_dump_all(objects) if objects is not None else None
            return subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, timeout=60, check=False)

        yield run
