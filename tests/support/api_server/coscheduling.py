"""The scheduler of scheduler-plugins with its plugin Coscheduling, as a second scheduler beside that of Kubernetes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

import local_cluster
from tests.support.api_server.api import Api, ApiError
from tests.support.api_server.gangs import COSCHEDULING
from tests.support.waiting import wait_until

SCHEDULER_NAME = "scheduler-plugins-scheduler"


def define(api: Api) -> None:
    """The definition of its PodGroup, from its own source."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    source = programs.module_folder("scheduler-plugins", "sigs.k8s.io/scheduler-plugins")
    definition = yaml.safe_load((source / "manifests" / "coscheduling" / "crd.yaml").read_text())
    api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    wait_until(lambda: _serves(api), "PodGroups are served")


@contextmanager
def coscheduling(folder: Path, kubeconfig: Path) -> Iterator[None]:
    """Runs the scheduler. It tries pods again after a second at most, and lets a pod of a gang wait ten seconds for the others."""
    coscheduling = {"name": "Coscheduling"}
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "profiles": [
            {
                "schedulerName": SCHEDULER_NAME,
                "plugins": {
                    "multiPoint": {"enabled": [coscheduling]},
                    "queueSort": {"enabled": [coscheduling], "disabled": [{"name": "*"}]},
                },
                "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
            }
        ],
    }
    (folder / "coscheduling.yaml").write_text(yaml.safe_dump(configuration))
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["scheduler-plugins"])
    command = [str(programs.path("scheduler-plugins")), f"--config={folder / 'coscheduling.yaml'}", "--secure-port=0"]
    with (folder / "coscheduling.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (folder / "coscheduling.log").read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(30)


def _serves(api: Api) -> bool:
    """Whether the API server serves PodGroups and lists them in its discovery, which comes later."""
    group, version = COSCHEDULING.split("/")
    with suppress(ApiError):
        listed = {each["name"] for each in api.get("/apis")["groups"]}
        return group in listed and bool(api.get(f"/apis/{group}/{version}/podgroups"))
    return False
