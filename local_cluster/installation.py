"""Muster in the cluster, as users install it: images of the Dockerfile, installed by Helm, in namespaces with pod security."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from local_cluster import Cluster
from local_cluster.images import build
from local_cluster.progress import step

RELEASE = "muster"
NAMESPACE = "muster-system"
CHART = build.ROOT / "charts" / "muster"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
VERSION = str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])
"""The default tag of the chart, so that `helm install` without further values finds the images too."""
READY_TIMEOUT = 300


@dataclass(frozen=True)
class Installation:
    """A release of the chart in a cluster; `images` maps the name of each image in `build.IMAGES` to its tagged name."""

    cluster: Cluster
    images: dict[str, str]

    def values(self) -> dict[str, Any]:
        """The values that name the images of the tests. Engines beside the core have none here, and keep the chart's image."""
        tags = {target: image.partition(":")[2] for target, image in self.images.items()}
        frameworks = yaml.safe_load((CHART / "values.yaml").read_text())["jobDefaults"]["images"]
        built = {name: tags.get(f"trainer-{name.lower()}") for name in frameworks}
        trainers = {name: {"tag": tag} for name, tag in built.items() if tag}
        return {"operator": {"image": {"tag": tags["operator"]}}, "jobDefaults": {"images": trainers}}

    def install(self, *options: str, values: dict[str, Any] | None = None) -> None:
        """Runs `helm upgrade --install` and waits until the operator is ready. `values` override `self.values`."""
        merged = _merged(self.values(), values or {})
        command = ["upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-", *options]
        self.helm(*command, stdin=json.dumps(merged))
        self.wait_until_ready()

    def helm(self, *arguments: str, stdin: str | None = None, timeout: float = 300) -> str:
        return self.cluster.run_program("helm", *arguments, stdin=stdin, timeout=timeout)

    def wait_until_ready(self) -> None:
        """Waits until the newest operator is ready, as a leader or as a standby."""
        options = (f"deployment/{RELEASE}", "--namespace", NAMESPACE, f"--timeout={READY_TIMEOUT}s")
        self.cluster.kubectl("rollout", "status", *options, timeout=READY_TIMEOUT + 10)

    def operator_pod(self) -> dict[str, Any]:
        """The operator's pod, or the newest one if there are several. Raises LookupError if there is none."""
        pods = self.cluster.get("pods", "--namespace", NAMESPACE, "--selector", "app.kubernetes.io/component=operator")["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        if not living:
            raise LookupError("no pod of the operator")
        newest: dict[str, Any] = max(living, key=lambda pod: pod["metadata"]["creationTimestamp"])
        return newest


def ensure(cluster: Cluster, names: Iterable[str] = build.CORE) -> Installation:
    """Builds, loads, and installs or upgrades Muster of this checkout in the cluster. `names` are its images, with that of the operator.

    Raises:
        ClusterError: a step failed.
    """
    images = put(cluster, names)
    make_namespace(cluster, NAMESPACE)
    installation = Installation(cluster, images)
    with step("installing Muster by Helm"):
        installation.install()
    return installation


def put(cluster: Cluster, names: Iterable[str]) -> dict[str, str]:
    """Builds images, and loads them into every worker, where the chart's default tag names them too. Returns their names with their tags.

    Raises:
        ClusterError: a step failed.
    """
    images = build.ensure(cluster.places, cluster.require_engine(), names)
    for image in images.values():
        with step(f"putting {image} into every worker"):
            cluster.load_image(image)
            cluster.forget_older_images(image)
            cluster.tag_image(image, VERSION)
    return images


def make_namespace(cluster: Cluster, name: str) -> None:
    """Creates a namespace with restricted pod security. Does not change an existing one."""
    labels = dict([RESTRICTED.split("=")])
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(namespace))


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(under[key], over[key]) for key in under.keys() & over.keys() if isinstance(under[key], dict)}
    return {**under, **over, **both}
