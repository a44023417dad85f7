"""The scheduler of scheduler-plugins with its plugin Coscheduling, as a second scheduler beside that of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

import local_cluster
from tests.support.api_server.api import Api, ApiError
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import scheduling
from tests.support.api_server.gangs import COSCHEDULING
from tests.support.waiting import wait_until

SCHEDULER_NAME = "scheduler-plugins-scheduler"
PERMIT_SECONDS = 10
"""How long a pod of a gang waits for the others before the scheduler gives its place to others."""
OVERLOOKED_SECONDS = 10
"""After how long, or 30 s later, the scheduler tries a pod again for which nothing seems to have changed: usually 5 minutes. When the count
of a PodGroup changes, it tries at once, but the plugin reads the PodGroup from a cache of its own, which may still have the old count."""


def define(api: Api) -> None:
    """The definition of its PodGroup, from its own source."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    source = programs.module_folder("scheduler-plugins", "sigs.k8s.io/scheduler-plugins")
    definition = yaml.safe_load((source / "manifests" / "coscheduling" / "crd.yaml").read_text())
    api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    wait_until(lambda: _serves(api), "PodGroups are served")


@contextmanager
def coscheduling(folder: Path, kubeconfig: Path) -> Iterator[None]:
    """Runs the scheduler. It tries pods again after a second at most."""
    coscheduling = {"name": "Coscheduling"}
    configuration = {
        **local_cluster.scheduler_configuration(kubeconfig),
        "profiles": [
            {
                "schedulerName": SCHEDULER_NAME,
                "plugins": {
                    "multiPoint": {"enabled": [coscheduling]},
                    "queueSort": {"enabled": [coscheduling], "disabled": [{"name": "*"}]},
                },
                "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": PERMIT_SECONDS}}],
            }
        ],
    }
    (folder / "coscheduling.yaml").write_text(yaml.safe_dump(configuration))
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["scheduler-plugins"])
    command = [
        *[str(programs.path("scheduler-plugins")), f"--config={folder / 'coscheduling.yaml'}", "--secure-port=0"],
        f"--pod-max-in-unschedulable-pods-duration={OVERLOOKED_SECONDS}s",
    ]
    with local_cluster.running(command, folder / "coscheduling.log") as process:
        yield
        assert process.poll() is None, (folder / "coscheduling.log").read_text()[-2000:]


@contextmanager
def scheduling_with_coscheduling(folder: Path, *, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """A cluster whose gangs are those of scheduler-plugins. It has no nodes yet."""
    groups = ["--set", "gangScheduling.apiGroups={scheduling.x-k8s.io}"]
    with scheduling(folder, has_gangs=False, options=[*groups, *options]) as cluster:
        define(cluster.admin)
        with coscheduling(folder, cluster.kubeconfig):
            yield cluster


def _serves(api: Api) -> bool:
    """Whether the API server serves PodGroups and lists them in its discovery, which comes later."""
    group, version = COSCHEDULING.split("/")
    with suppress(ApiError):
        listed = {each["name"] for each in api.get("/apis")["groups"]}
        return group in listed and bool(api.get(f"/apis/{group}/{version}/podgroups"))
    return False
