"""A cluster for tests: its nodes and their faults, its images, and the volume that all nodes share."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engine import NETWORK, Engine
from .errors import ClusterError, CommandFailedError
from .places import FOLDER, Places
from .process import run

NAME = "muster"
SHARED = "/shared"
CLAIM_SIZE = "10Gi"  # a claim needs one, and nothing enforces it
NODE_READY_TIMEOUT = 240.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.5  # seconds between two looks at a condition


@dataclass(frozen=True)
class Node:
    """A node, as the engine reports it.

    Attributes:
        name: name of the container and of the Kubernetes node.
        role: `control-plane` or `worker`.
        state: `running`, `paused` or `exited`.
    """

    name: str
    role: str
    state: str


@dataclass(frozen=True)
class Cluster:
    """A cluster that kind made here or, without an engine, a cluster of the user.

    Faults, images and the shared folder need the engine. Without an engine they raise ClusterError.
    """

    places: Places
    kubeconfig: Path
    engine: Engine | None = None

    @classmethod
    def attached(cls, places: Places, engine: Engine) -> "Cluster":
        """The cluster of this package, whether it exists or not."""
        return cls(places, places.kubeconfig, engine)

    @classmethod
    def named_by_environment(cls, places: Places) -> "Cluster | None":
        """The cluster that KUBECONFIG names. None if it names none, or the cluster of this package."""
        value = os.environ.get("KUBECONFIG")
        if not value or Path(value).resolve() == places.kubeconfig.resolve():
            return None
        return cls(places, Path(value))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point kubectl, helm, kind and docker at this cluster."""
        path = f"{self.places.bin}:{os.environ.get('PATH', '')}"
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.places.work / "discovery"), "PATH": path}
        return own | (self.engine.environment if self.engine else {})

    def program(self, name: str) -> str:
        """The path of kind, kubectl or helm: the one that this package built, or else the one on PATH.

        Raises:
            ClusterError: the program is in neither place.
        """
        path = shutil.which(name, path=self.environment["PATH"])
        if path is None:
            raise ClusterError(f"{name} is neither in {self.places.bin} nor on PATH: run `make cluster`, or install it")
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Runs kubectl against the cluster and returns its output. Raises the errors of `run_program`."""
        return self.run_program("kubectl", *arguments, stdin=stdin, timeout=timeout)

    def try_kubectl(self, *arguments: str, timeout: float = 60) -> bool:
        """Runs kubectl with a command that the cluster may interrupt. Returns whether it succeeded."""
        try:
            self.kubectl(*arguments, timeout=timeout)
        except CommandFailedError:
            return False
        return True

    def run_program(self, name: str, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Runs kubectl, helm or kind against the cluster and returns its output.

        Raises:
            CommandFailedError: the program failed, or did not end within `timeout` seconds.
        """
        return run([self.program(name), *arguments], timeout, env=self.environment, stdin=stdin)

    def get(self, *arguments: str) -> dict[str, Any]:
        """The parsed output of `kubectl get ... -o json`."""
        answer: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return answer

    def check(self) -> None:
        """Raises ClusterError unless the API server answers and at least two nodes are ready."""
        try:
            nodes = self.get("nodes", "--request-timeout=10s")["items"]
        except CommandFailedError as error:
            message = f"the cluster of KUBECONFIG={self.kubeconfig} does not answer: correct or unset KUBECONFIG\n{error.output}"
            raise ClusterError(message) from error
        ready = [node["metadata"]["name"] for node in nodes if _is_ready(node)]
        if len(ready) < 2:
            raise ClusterError(f"the cluster of KUBECONFIG={self.kubeconfig} has {len(ready)} ready nodes; the tests need two or more")

    def is_whole(self, workers: int) -> bool:
        """Whether this is a running cluster with so many workers, and all of its nodes are ready."""
        nodes = self.nodes()
        if [node.state for node in nodes] != ["running"] * (workers + 1) or not self.kubeconfig.exists():
            return False
        try:
            return all(_is_ready(node) for node in self.get("nodes", "--request-timeout=10s")["items"])
        except CommandFailedError:
            return False

    def nodes(self) -> list[Node]:
        """The nodes that kind made, including stopped ones. The control plane comes first."""
        line = '{{.Names}} {{.Label "io.x-k8s.kind.role"}} {{.State}}'
        listing = self._docker("ps", "--all", "--filter", f"label=io.x-k8s.kind.cluster={NAME}", "--format", line)
        return sorted((Node(*each.split()) for each in listing.splitlines()), key=lambda node: (node.role, node.name))

    def workers(self) -> list[str]:
        """The names of the worker nodes."""
        return [node.name for node in self.nodes() if node.role == "worker"]

    def kill_node(self, name: str) -> None:
        """Ends every process of a node at once, as a power failure does."""
        self._docker("kill", name)

    def start_node(self, name: str) -> None:
        """Starts a killed node, and waits until Kubernetes marks it as Ready."""
        started = time.time()
        self._docker("start", name)
        self._wait_until_ready(name, since=started)

    def pause_node(self, name: str) -> None:
        """Freezes a node. Its processes still exist but do not run. The kernel may miss some of them while they fork fast."""

        def frozen() -> bool:
            try:
                self._docker("pause", name)
            except CommandFailedError as error:
                if "unable to freeze" not in error.output:
                    raise
                return False
            return True

        self.wait_until(f"{name} is frozen", frozen, timeout=60)

    def unpause_node(self, name: str) -> None:
        """Lets a frozen node run again."""
        self._docker("unpause", name)

    def disconnect_node(self, name: str) -> None:
        """Disconnects a node from all others. Its processes go on."""
        address = self._address(name)
        if not address:
            raise ClusterError(f"{name} is disconnected already, or does not run")
        self._cut_off(name).parent.mkdir(parents=True, exist_ok=True)
        self._cut_off(name).write_text(address)
        self._docker("network", "disconnect", NETWORK, name)

    def reconnect_node(self, name: str) -> None:
        """Reconnects a node that was disconnected, with its old address, and renews its routes."""
        address = self._cut_off(name).read_text()
        try:
            self._docker("network", "connect", "--ip", address, NETWORK, name)
        except CommandFailedError:  # in a network that kind made, no address can be selected; the first free one is usually the old one
            self._docker("network", "connect", NETWORK, name)
        self._cut_off(name).unlink()
        self.restore_network(name)

    def restore_network(self, name: str) -> None:
        """Restarts a node's network service, which makes routes and guards when the node boots."""
        if self.execute(name, "systemctl", "list-unit-files", "--no-legend", "pod-network.service").strip():
            self.execute(name, "systemctl", "restart", "guard.service", "pod-network.service")

    def install_guard(self, name: str) -> None:
        """Gives a node of kind's own image the guard that this package's node image has (node/guard.service)."""
        unit = (FOLDER / "node/guard.service").read_text()
        self._docker("exec", "--interactive", name, "sh", "-c", "cat > /etc/systemd/system/guard.service", stdin=unit)
        self.execute(name, "systemctl", "enable", "--now", "guard.service")

    def execute(self, name: str, *command: str, timeout: float = 60) -> str:
        """Runs a command in a node."""
        return self._docker("exec", name, *command, timeout=timeout)

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Ends the processes of a container with SIGKILL from outside its pod. The kubelet then restarts the container."""
        manifest = self.get("pod", pod, "--namespace", namespace)
        [identity] = [each["containerID"] for each in manifest["status"]["containerStatuses"] if each["name"] == container]
        task = identity.rpartition("/")[2]
        self.execute(manifest["spec"]["nodeName"], "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", task)

    def load_image(self, image: str | Path) -> None:
        """Loads an image into every worker: an image of the engine by its name, or an archive of `docker save` by its path.

        The control plane runs no pods of users, and an image of one or two gigabytes takes half a minute on each node.
        """
        kind = "image-archive" if Path(image).is_file() else "docker-image"
        nodes = ",".join(self.workers())
        run([self.program("kind"), "load", kind, str(image), "--name", NAME, "--nodes", nodes], 900, env=self.environment)

    def tag_image(self, image: str, tag: str) -> None:
        """Gives another tag to an image that is in the workers."""
        name = f"docker.io/library/{image}"
        for node in self.workers():
            other = f"{name.rpartition(':')[0]}:{tag}"
            self.execute(node, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", name, other)

    def forget_older_images(self, image: str) -> None:
        """Removes images with another tag of the same repository from the workers, because a trainer image takes gigabytes of each node."""
        repository = image.rpartition(":")[0]
        for node in self.workers():
            names = self.execute(node, "ctr", "--namespace", "k8s.io", "images", "ls", "--quiet").split()
            old = [name for name in names if name.rpartition(":")[0].endswith(f"/{repository}") and not name.endswith(f"/{image}")]
            if old:
                self.execute(node, "ctr", "--namespace", "k8s.io", "images", "rm", *old)

    def make_shared_claim(self, name: str, namespace: str = "default") -> Path:
        """Creates a PersistentVolumeClaim that pods of all nodes can write at once. Returns its folder on this machine.

        Every user can write to the folder, because Kubernetes changes no ownership on such a volume.
        """
        folder = self.places.shared / namespace / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        inside = f"{SHARED}/{namespace}/{name}"
        both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume_spec = {**both, "capacity": {"storage": CLAIM_SIZE}, "hostPath": {"path": inside}, "persistentVolumeReclaimPolicy": "Retain"}
        volume_spec["claimRef"] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace}
        claim_spec = {**both, "resources": {"requests": {"storage": CLAIM_SIZE}}, "volumeName": f"{namespace}-{name}"}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{namespace}-{name}"}, "spec": volume_spec}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": claim_spec,
        }
        self.require_engine()
        if "Released" in self.kubectl("get", "persistentvolume", f"{namespace}-{name}", "--ignore-not-found"):  # of an earlier claim
            self.kubectl("delete", "persistentvolume", f"{namespace}-{name}")
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, claim]}))
        return folder

    def remove_shared_claim(self, name: str, namespace: str = "default") -> None:
        """Deletes the claim, the volume and the folder."""
        self.kubectl("delete", "--ignore-not-found", "-n", namespace, f"persistentvolumeclaim/{name}")
        self.kubectl("delete", "--ignore-not-found", f"persistentvolume/{namespace}-{name}")
        shutil.rmtree(self.places.shared / namespace / name, ignore_errors=True)

    def wait_until(self, what: str, condition: Callable[[], bool], *, timeout: float) -> None:
        """Waits until a condition holds. If a command fails meanwhile, the condition does not hold yet.

        Raises:
            ClusterError: the condition did not hold within `timeout` seconds. The message names it, and the error of the last command.
        """
        deadline, pause, failure = time.monotonic() + timeout, FIRST_PAUSE, ""
        while True:
            try:
                if condition():
                    return
                failure = ""
            except CommandFailedError as error:
                failure = f"\n{error}"
            if time.monotonic() > deadline:
                raise ClusterError(f"after {timeout:.0f} s still not: {what}{failure}")
            time.sleep(pause)
            pause = min(1.2 * pause, LONGEST_PAUSE)  # each look runs kubectl, which takes processor time from the cluster

    def _wait_until_ready(self, name: str, *, since: float) -> None:
        """Waits until a node is Ready. Only a heartbeat after `since` counts, because the old condition stays True for about 40 s after a
        kill."""

        def ready() -> bool:
            lease: str = self.get("lease", name, "-n", "kube-node-lease")["spec"]["renewTime"]
            return lease > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since)) and _is_ready(self.get("node", name))

        self.wait_until(f"node {name} ready", ready, timeout=NODE_READY_TIMEOUT)

    def require_engine(self) -> Engine:
        """The engine that the nodes run on. Raises ClusterError if KUBECONFIG names a cluster of the user."""
        if self.engine is None:
            raise ClusterError("this needs a cluster that `make cluster` made, and KUBECONFIG names another: unset KUBECONFIG")
        return self.engine

    def _docker(self, *arguments: str, timeout: float = 60, stdin: str | None = None) -> str:
        return self.require_engine().docker(*arguments, timeout=timeout, stdin=stdin)

    def _address(self, name: str) -> str:
        template = f'{{{{with index .NetworkSettings.Networks "{NETWORK}"}}}}{{{{.IPAddress}}}}{{{{end}}}}'
        return self._docker("inspect", "--format", template, name).strip()

    def _cut_off(self, name: str) -> Path:
        return self.places.work / "cut-off" / name


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"
