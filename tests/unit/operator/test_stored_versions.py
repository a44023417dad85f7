"""Stored objects are migrated to the newest version, and the definition then names no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from muster.kubernetes.api_paths import ApiPath
from muster.kubernetes.errors import ConflictError, NotFoundError, RefusedError, UnavailableError
from muster.kubernetes.objects import Object
from muster.operator.gateway import Gateway
from muster.operator.stored_versions import migrate

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOB = ApiPath("/apis/muster.dev/v1beta1/namespaces/team/trainingjobs/digits")
PRESET = ApiPath("/apis/muster.dev/v1beta1/trainingpresets/h100-8")


class Server(Gateway):
    """Has one job and one preset. `fails` are the errors of the first patches."""

    def __init__(self, stored: Sequence[str], *, newest: str = "v1beta1", fails: Sequence[Exception] = ()) -> None:
        self.stored = {"trainingjobs": list(stored), "trainingpresets": list(stored)}
        self.newest, self._fails = newest, list(fails)
        self.patched: list[str] = []

    async def request(self, verb: str, path: ApiPath, **_: Any) -> Object:
        plural = path.removeprefix(f"{DEFINITIONS}/").removesuffix(".muster.dev")
        versions = [{"name": name, "storage": name == self.newest} for name in ("v1", "v1beta1", "v1alpha1")]
        return {"metadata": {"resourceVersion": "7"}, "spec": {"versions": versions}, "status": {"storedVersions": self.stored[plural]}}

    async def paths(self, version: str, plural: str) -> list[ApiPath]:
        return [JOB if plural == "trainingjobs" else PRESET]

    async def patch(self, path: ApiPath, patch: Object) -> None:
        if self._fails:
            raise self._fails.pop(0)
        self.patched.append(path)
        if path.startswith(DEFINITIONS):
            assert patch["metadata"] == {"resourceVersion": "7"}
            self.stored[path.rpartition("/")[0].rpartition("/")[2].removesuffix(".muster.dev")] = patch["status"]["storedVersions"]
        else:
            assert patch == {}


def migrated(server: Server) -> Server:
    asyncio.run(asyncio.wait_for(migrate(server, retry_seconds=0), 10))
    return server


def test_all_objects_are_written_before_the_older_version_is_removed() -> None:
    server = migrated(Server(["v1alpha1", "v1beta1"]))
    assert server.patched == [
        f"{JOB}/status",
        f"{DEFINITIONS}/trainingjobs.muster.dev/status",
        PRESET,
        f"{DEFINITIONS}/trainingpresets.muster.dev/status",
    ]
    assert server.stored == {"trainingjobs": ["v1beta1"], "trainingpresets": ["v1beta1"]}


@pytest.mark.parametrize(
    ("stored", "newest"), [(["v1beta1"], "v1beta1"), (["v1alpha1"], "v1alpha1"), (["v1beta1", "v1"], "v1")], ids=["done", "older", "newer"]
)
def test_nothing_is_written_unless_objects_of_an_older_version_may_be_left(stored: list[str], newest: str) -> None:
    assert migrated(Server(stored, newest=newest)).patched == []


def test_an_object_that_was_deleted_meanwhile_is_left_out() -> None:
    assert migrated(Server(["v1alpha1"], fails=[NotFoundError("gone")])).stored["trainingjobs"] == ["v1beta1"]


@pytest.mark.parametrize("error", [UnavailableError("busy"), ConflictError("changed")])
def test_another_try_follows_when_it_may_help(error: Exception) -> None:
    assert migrated(Server(["v1alpha1"], fails=[error])).stored["trainingjobs"] == ["v1beta1"]


def test_a_version_stays_listed_if_an_object_could_not_be_written(caplog: pytest.LogCaptureFixture) -> None:
    server = migrated(Server(["v1alpha1"], fails=[RefusedError("spec.strategy: no longer valid")]))
    assert server.stored == {"trainingjobs": ["v1alpha1"], "trainingpresets": ["v1beta1"]}
    assert "trainingjobs are not migrated to v1beta1: spec.strategy: no longer valid" in caplog.text
