"""Both versions of the API on a real API server, and the migration of stored objects."""

from __future__ import annotations

import copy
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.test_policies import hijacker  # noqa: F401
from tests.apiserver.test_presets import PRESETS, presets  # noqa: F401
from tests.support.api_server.api import JOBS, Api, ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Nodes
from tests.support.api_server.operators import operating
from tests.support.presets import preset
from tests.support.waiting import wait_until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PLURALS = ("trainingjobs", "trainingpresets")


def deprecated(path: str) -> str:
    return path.replace("v1beta1", "v1alpha1")


def of_deprecated(manifest: Object) -> Object:
    return {**manifest, "apiVersion": "muster.dev/v1alpha1"}


def definition(cluster: Cluster, plural: str) -> Object:
    return cluster.admin.get(f"{DEFINITIONS}/{plural}.muster.dev")


def stored_versions(cluster: Cluster, plural: str) -> list[str]:
    return list(definition(cluster, plural)["status"]["storedVersions"])


def change_versions(cluster: Cluster, plural: str, versions: list[Object]) -> None:
    cluster.admin.patch(f"{DEFINITIONS}/{plural}.muster.dev", {"spec": {"versions": versions}})


def store_anew(cluster: Cluster, path: str) -> None:
    """Has an object stored in another version than it is stored in now. A patch without a change writes it only then, so it shows as well
    that the API server has taken over a change of the definition."""
    before = cluster.admin.get(path)["metadata"]["resourceVersion"]
    wait_until(lambda: cluster.admin.patch(path, {})["metadata"]["resourceVersion"] != before, f"{path} is stored in another version")


@pytest.fixture
def written_before(cluster: Cluster, jobs: Jobs, presets: str) -> Iterator[None]:  # noqa: F811
    """A job and a preset that are stored as v1alpha1, as before the upgrade to v1beta1."""
    now = {plural: definition(cluster, plural)["spec"]["versions"] for plural in PLURALS}
    cluster.admin.create(deprecated(presets), of_deprecated(preset("small", roles={})))
    cluster.admin.create(deprecated(JOBS.format(jobs.namespace)), of_deprecated(job("digits", workers=1, preset="small")))
    for plural, versions in now.items():
        change_versions(cluster, plural, [{**each, "storage": not each["storage"]} for each in versions])
    for path in (f"{PRESETS}/small", jobs.path("digits")):
        store_anew(cluster, path)
    for plural, versions in now.items():
        change_versions(cluster, plural, versions)
    yield
    for plural, versions in now.items():
        change_versions(cluster, plural, versions)


def test_a_job_is_applied_and_read_in_either_version(cluster: Cluster, jobs: Jobs) -> None:
    manifest = job("digits", workers=1)
    cluster.admin.apply(jobs.path("digits"), manifest)
    assert cluster.admin.get(deprecated(jobs.path("digits")))["apiVersion"] == "muster.dev/v1alpha1"
    changed = copy.deepcopy(of_deprecated(manifest))
    changed["spec"]["roles"]["worker"]["replicas"] = 3
    cluster.admin.apply(deprecated(jobs.path("digits")), changed)
    read = cluster.admin.get(jobs.path("digits"))
    assert (read["apiVersion"], read["spec"]["roles"]["worker"]["replicas"]) == ("muster.dev/v1beta1", 3)
    assert len([each for each in read["metadata"]["managedFields"] if each["manager"] == "tests"]) == 1, "one applier in both versions"


def test_only_the_deprecated_version_has_a_warning(cluster: Cluster, namespace: str) -> None:
    def warning(path: str) -> str:
        request = urllib.request.Request(cluster.admin.server + path, headers={"Authorization": f"Bearer {cluster.admin.token}"})
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=cluster.admin.authority)) as answer:
            return str(answer.headers.get("Warning", ""))

    assert warning(JOBS.format(namespace)) == ""
    assert "v1alpha1 TrainingJob is deprecated: write muster.dev/v1beta1" in warning(deprecated(JOBS.format(namespace)))


def test_an_operator_runs_and_migrates_what_was_stored_before_the_upgrade(
    cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path, written_before: None
) -> None:
    assert [stored_versions(cluster, plural) for plural in PLURALS] == [["v1beta1", "v1alpha1"]] * 2
    before = cluster.admin.get(f"{PRESETS}/small")["metadata"]
    with operating(cluster, tmp_path / "operator"):
        wait_until(lambda: all(stored_versions(cluster, plural) == ["v1beta1"] for plural in PLURALS), "both kinds are migrated")
        jobs.reaches("digits", "Running")
        after = cluster.admin.get(f"{PRESETS}/small")["metadata"]
        assert (after["generation"], after["resourceVersion"] != before["resourceVersion"]) == (before["generation"], True)
        for plural in PLURALS:  # the API server could not read an object that is stored in a version without definition
            [newest, _] = definition(cluster, plural)["spec"]["versions"]
            change_versions(cluster, plural, [newest])
            wait_until(lambda plural=plural: not is_served(cluster, plural), f"{plural} are not served as v1alpha1")
        assert jobs.get("digits")["spec"]["preset"] == "small"
        assert cluster.admin.get(f"{PRESETS}/small")["apiVersion"] == "muster.dev/v1beta1"


def is_served(cluster: Cluster, plural: str) -> bool:
    """Whether the kind is served in the deprecated version."""
    try:
        return any(each["name"] == plural for each in cluster.admin.get("/apis/muster.dev/v1alpha1")["resources"])
    except ApiError as error:
        if error.status != 404:
            raise
        return False


def test_the_account_of_the_operator_changes_no_preset_and_no_definition(
    cluster: Cluster,
    presets: str,  # noqa: F811
    hijacker: Api,  # noqa: F811
) -> None:
    cluster.admin.create(presets, preset("small", roles={}))
    path, definition_path = f"{presets}/small", f"{DEFINITIONS}/trainingjobs.muster.dev"
    hijacker.patch(path, {})
    hijacker.patch(f"{definition_path}/status", {"status": {"storedVersions": ["v1beta1"]}})
    with pytest.raises(ApiError, match="Muster changes no preset"):
        hijacker.patch(path, {"spec": {"images": {"PyTorch": "evil"}}})
    with pytest.raises(ApiError, match="changes only the stored versions"):
        hijacker.patch(f"{definition_path}/status", {"status": {"conditions": []}})
    for refused, patch in ((definition_path, {"spec": {"scope": "Cluster"}}), (f"{DEFINITIONS}/others.example.com/status", {})):
        with pytest.raises(ApiError, match="forbidden"):
            hijacker.patch(refused, patch)
