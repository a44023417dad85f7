"""The files of a release are enough: the wheel, the chart, the manifests and the plug-in work far away from the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import local_cluster
from muster.api.constants import KIND, PLURAL
from tests.support.releases import PLATFORM, ROOT, VERSION, Run, committed, install_plugin, install_wheel, release, run, succeeded

JOB = {
    "apiVersion": "muster.dev/v1beta1",
    "kind": KIND,
    "metadata": {"name": "counted"},
    "spec": {"strategy": "DDP", "trainer": {"script": "count.py"}, "roles": {"worker": {"replicas": 1}}},
}
PROGRAM = """
import muster_training as muster
for step in range(1, 6):
    muster.report(step=step, total=5, loss=1 / step)
with muster.checkpoint(5) as folder:
    (folder / "done").write_text("5")
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose dist/ has what most users install."""
    folder = committed(tmp_path_factory.mktemp("checkout"))
    succeeded(release(folder, VERSION, "package", "chart", "manifests", f"plugin-{PLATFORM}"))
    return folder


@pytest.fixture(scope="module")
def dist(checkout: Path) -> Path:
    return checkout / "dist"


@pytest.fixture(scope="module")
def elsewhere(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new environment, in which the wheel is installed with what commands on a cluster need."""
    folder = tmp_path_factory.mktemp("elsewhere")
    install_wheel(dist, folder)
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    (folder / "count.py").write_text(PROGRAM)
    shutil.copy(ROOT / "examples" / "other-tools" / "pytorchjob.yaml", folder)
    return folder


@pytest.fixture(scope="module")
def muster(elsewhere: Path) -> Run:
    return lambda *arguments: run(elsewhere / "venv" / "bin" / "muster", *arguments, cwd=elsewhere)


@pytest.fixture(scope="module")
def kubectl(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """kubectl on an API server where install.yaml is applied, with the plug-in of the release on its PATH."""
    folder = tmp_path_factory.mktemp("plugin")
    install_plugin(dist, folder)
    places = local_cluster.Places.default()
    with local_cluster.api_server(places) as kubeconfig:
        program = local_cluster.Programs(places).path("kubectl")
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"KUBECONFIG": str(kubeconfig), "PATH": path, "SHIV_ROOT": str(folder / "unpacked")}
        yield lambda *arguments, cwd=folder: run(program, *arguments, cwd=cwd, env=env)


def test_the_sums_are_those_of_the_files(dist: Path) -> None:
    succeeded(run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist))
    named = {line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    assert named == {each.name for each in dist.iterdir()} - {"SHA256SUMS"}


def test_all_files_have_the_version_of_pyproject(dist: Path, muster: Run) -> None:
    assert muster("--version").stdout.split() == ["muster", VERSION]
    with tarfile.open(dist / f"muster-{VERSION}.tgz") as archive:
        content = archive.extractfile("muster/Chart.yaml")
        assert content
        chart = yaml.safe_load(content)
    objects = [each for each in yaml.safe_load_all((dist / "install.yaml").read_text()) if each]
    labels = {each["metadata"]["labels"]["app.kubernetes.io/version"] for each in objects if each["kind"] != "Namespace"}
    images = set(re.findall(r"muster-[a-z-]+:(\d[\w.-]*)", (dist / "install.yaml").read_text()))
    krew = yaml.safe_load((dist / "krew-muster.yaml").read_text())["spec"]["version"]
    assert {chart["version"], chart["appVersion"], *labels, *images, krew.removeprefix("v")} == {VERSION}


def test_the_wheel_validates_renders_and_converts_jobs(muster: Run) -> None:
    succeeded(muster("validate", "job.yaml"))
    kinds = {each["kind"] for each in yaml.safe_load_all(succeeded(muster("render", "job.yaml"))) if each}
    assert {"Pod", "Service"} <= kinds
    assert yaml.safe_load(succeeded(muster("convert", "pytorchjob.yaml")))["kind"] == KIND


def test_the_wheel_runs_a_program_that_saves(muster: Run, elsewhere: Path) -> None:
    succeeded(muster("run", "job.yaml"))
    assert [each.read_text() for each in elsewhere.glob("runs/counted/**/done")] == ["5"]


def test_the_manifests_and_the_chart_are_accepted_and_the_plug_in_submits_jobs(kubectl: Run, dist: Path, elsewhere: Path) -> None:
    succeeded(kubectl("apply", "--server-side", "-f", str(dist / "install.yaml")))
    succeeded(kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{PLURAL}.muster.dev"))
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["helm"])
    options = ("--namespace", "muster-system", "--no-hooks", "--kube-version", "1.34")
    chart = succeeded(run(programs.path("helm"), "template", "muster", dist / f"muster-{VERSION}.tgz", *options, cwd=elsewhere))
    (elsewhere / "chart.yaml").write_text(chart)
    succeeded(kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", str(elsewhere / "chart.yaml")))

    assert succeeded(kubectl("muster", "--version")).split()[-1] == VERSION
    succeeded(kubectl("muster", "submit", "job.yaml", cwd=elsewhere))
    assert "counted" in succeeded(kubectl("muster", "get"))
    assert "counted" in succeeded(kubectl("get", PLURAL, "-o", "name"))


def test_a_second_build_writes_the_same_bytes_and_a_key_signs_their_sums(checkout: Path, dist: Path, tmp_path: Path) -> None:
    before, key, public = (dist / "SHA256SUMS").read_bytes(), tmp_path / "key.pem", tmp_path / "public.pem"
    succeeded(run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key, cwd=tmp_path))
    succeeded(run("openssl", "ec", "-in", key, "-pubout", "-out", public, cwd=tmp_path))
    try:
        succeeded(release(checkout, VERSION, "package", "chart", "manifests", "--key", str(key)))
        assert (dist / "SHA256SUMS").read_bytes() == before
        succeeded(run("openssl", "base64", "-d", "-in", "SHA256SUMS.sig", "-out", tmp_path / "sig", cwd=dist))
        verify = ("openssl", "dgst", "-sha256", "-verify", public, "-signature", tmp_path / "sig")
        succeeded(run(*verify, "SHA256SUMS", cwd=dist))
        assert run(*verify, "install.yaml", cwd=dist).returncode
    finally:
        (dist / "SHA256SUMS.sig").unlink(missing_ok=True)


ENGINE = """#!{python}
import io, json, sys, tarfile
if sys.argv[1] == "version":
    print("amd64")
elif sys.argv[1] == "save":
    manifest = {{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:00", "size": 2}}
    files = {{"index.json": {{"manifests": [manifest]}}, "manifest.json": [], "oci-layout": {{"imageLayoutVersion": "1.0.0"}}}}
    with tarfile.open(sys.argv[3], "w") as archive:
        for name, content in files.items():
            data = json.dumps(content).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
"""
"""A Docker engine that builds nothing, and saves as Docker does from 25 on."""


def test_an_image_that_the_engine_saves_as_an_oci_layout_needs_no_skopeo(checkout: Path, dist: Path, tmp_path: Path) -> None:
    (tmp_path / "docker").write_text(ENGINE.format(python=sys.executable))
    (tmp_path / "docker").chmod(0o755)
    archive = dist / f"muster-operator-{VERSION}-linux-amd64.oci.tar"
    try:
        succeeded(release(checkout, VERSION, "images", "--image", "operator", env={"PATH": f"{tmp_path}:/usr/bin:/bin"}))
        with tarfile.open(archive) as layout:
            index = layout.extractfile("index.json")
            assert index
            [manifest] = json.load(index)["manifests"]
            assert set(layout.getnames()) == {"index.json", "oci-layout"}
        assert manifest["annotations"]["io.containerd.image.name"] == f"docker.io/library/muster-operator:{VERSION}"
        assert archive.name in (dist / "SHA256SUMS").read_text()
    finally:
        archive.unlink(missing_ok=True)
        succeeded(release(checkout, VERSION, "manifests"))  # writes the sums anew


@pytest.mark.thorough
def test_two_checkouts_give_the_same_bytes_for_all_platforms(tmp_path: Path) -> None:
    sums = []
    for name in ("one", "two"):
        folder = committed(tmp_path / name)
        plugins = [f"plugin-{system}-{processor}" for system in ("linux", "darwin") for processor in ("amd64", "arm64")]
        succeeded(release(folder, VERSION, "package", "chart", "manifests", *plugins))
        sums.append((folder / "dist" / "SHA256SUMS").read_text())
    assert sums[0] == sums[1]
    manifest = yaml.safe_load((folder / "dist" / "krew-muster.yaml").read_text())
    assert {(each["sha256"], each["uri"].rpartition("/")[2]) for each in manifest["spec"]["platforms"]} <= {
        tuple(line.split()) for line in sums[0].splitlines()
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("",), "semantic version"),
        (("1.2",), "semantic version"),
        (("999.0.0",), "pyproject.toml"),
        ((VERSION, "wheels"), "wheels"),
        ((VERSION, "chart", "--key", "no-such-file"), "KEY=no-such-file"),
    ],
    ids=lambda value: " ".join(value) or "none" if isinstance(value, tuple) else "",
)
def test_a_release_that_cannot_be_made_is_refused_with_one_sentence(checkout: Path, arguments: tuple[str, ...], named: str) -> None:
    refused = release(checkout, *arguments)
    [*_, sentence] = refused.stderr.splitlines()
    assert refused.returncode == 1
    assert named in sentence
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("change", ["a new file", "another version"])
def test_a_checkout_that_is_not_the_version_is_refused(checkout: Path, change: str) -> None:
    file = checkout / ("new.txt" if change == "a new file" else "Dockerfile")
    before = file.read_text() if file.exists() else None
    file.write_text((before or "").replace(f"VERSION={VERSION}", "VERSION=0.0.1"))
    try:
        refused = release(checkout, VERSION, "chart")
        assert refused.returncode == 1
        assert file.name in refused.stderr
    finally:
        file.unlink() if before is None else file.write_text(before)
