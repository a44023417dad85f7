"""The files of a release install Muster on a cluster and use it there, far away from the checkout: no image, chart or command comes from
anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import local_cluster
from local_cluster.images import base, build
from local_cluster.installation import NAMESPACE, RELEASE, make_namespace
from tests.support.releases import PLATFORM, VERSION, Run, committed, install_plugin, install_wheel, release, run, succeeded

pytestmark = [pytest.mark.release, pytest.mark.timeout(7200)]
IMAGES = ("operator", "trainer-pytorch")
NAME = "released"
JOB = {
    "apiVersion": "muster.dev/v1beta1",
    "kind": "TrainingJob",
    "metadata": {"name": NAME},
    "spec": {
        "strategy": "DDP",
        "trainer": {"task": "digits", "config": {"epochs": 1}},
        "roles": {"worker": {"replicas": 2, "resources": {"requests": {"cpu": "50m", "memory": "300Mi"}}}},
    },
}


@pytest.fixture(scope="module")
def dist(cluster: local_cluster.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release, with the images that the job needs. They are built on the base images of the tests."""
    checkout, engine = committed(tmp_path_factory.mktemp("checkout")), cluster.require_engine()
    bases = base.ensure(cluster.places, engine)
    of_plain, of_pytorch = (build.IMAGES[name].arguments(bases) for name in IMAGES)
    parts = [VERSION, "package", "chart", "manifests", f"plugin-{PLATFORM}"]
    succeeded(release(checkout, *parts))
    for name, arguments in zip(IMAGES, (of_plain, of_pytorch), strict=True):
        env = {**cluster.environment, **{key: value for key, value in arguments.items() if key != "FRAMEWORK"}}
        succeeded(release(checkout, VERSION, "images", "--image", name, env=env, seconds=7200))
    return checkout / "dist"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    return folder


@pytest.fixture(scope="module")
def installed(cluster: local_cluster.Cluster, dist: Path, elsewhere: Path) -> Iterator[Run]:
    """Programs in a folder far away, once the images are loaded and the chart is installed. The workers had no image of Muster before."""
    cluster.run_program("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait", timeout=300)
    for name in build.IMAGES:
        cluster.forget_older_images(f"muster-{name}:none")
    for archive in sorted(dist.glob("*.oci.tar")):
        cluster.load_image(archive)
    install_plugin(dist, elsewhere)
    muster = install_wheel(dist, elsewhere)
    path = f"{elsewhere}:{muster.parent}:{cluster.environment['PATH']}"
    env = {**cluster.environment, "PATH": path, "SHIV_ROOT": str(elsewhere / "unpacked")}
    make_namespace(cluster, NAMESPACE)
    chart = dist / f"muster-{VERSION}.tgz"
    succeeded(run("helm", "install", RELEASE, chart, "--namespace", NAMESPACE, "--wait", "--timeout", "5m", cwd=elsewhere, env=env))
    yield lambda *command: run(*command, cwd=elsewhere, env=env)
    cluster.kubectl("delete", "trainingjob", NAME, "--ignore-not-found")
    cluster.run_program("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", timeout=300)


def test_the_archives_of_the_images_have_the_names_that_the_chart_uses(dist: Path) -> None:
    assert len(list(dist.glob(f"muster-*-{VERSION}-linux-*.oci.tar"))) == len(IMAGES)
    succeeded(run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist))


def test_the_chart_of_the_release_trains_a_job_on_its_images(installed: Run) -> None:
    output = succeeded(installed("helm", "test", RELEASE, "--namespace", NAMESPACE, "--logs", "--timeout", "9m"))
    assert "Succeeded" in output


def test_a_job_is_submitted_from_the_wheel_and_read_with_the_plug_in(installed: Run) -> None:
    assert succeeded(installed("muster", "--version")).split() == ["muster", VERSION]
    submitted = installed("muster", "submit", "job.yaml", "--watch")
    explained = installed("kubectl", "muster", "explain", NAME)
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr + explained.stdout
    assert "has succeeded" in succeeded(explained)
    assert "released" in succeeded(installed("kubectl", "muster", "get"))
    assert "epoch" in succeeded(installed("kubectl", "muster", "logs", NAME))
