"""A cluster for tests: its nodes, what can befall them, images, and the volume that all nodes share."""

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
NODE_READY_TIMEOUT = 240.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.5  # seconds between two looks at a condition


@dataclass(frozen=True)
class Node:
    """A node as the engine sees it.

    Attributes:
        name: of the container and of the Kubernetes node.
        role: `control-plane` or `worker`.
        state: `running`, `paused` or `exited`.
    """

    name: str
    role: str
    state: str


@dataclass(frozen=True)
class Cluster:
    """A cluster that kind made here, or (without an engine) one that somebody gave.

    Faults, images and the shared folder need the engine: without one they raise ClusterError.
    """

    places: Places
    kubeconfig: Path
    engine: Engine | None = None

    @classmethod
    def attached(cls, places: Places, engine: Engine) -> "Cluster":
        """Ours, whether it exists or not."""
        return cls(places, places.kubeconfig, engine)

    @classmethod
    def named_by_environment(cls, places: Places) -> "Cluster | None":
        """The one of KUBECONFIG, if that is set and not to ours."""
        value = os.environ.get("KUBECONFIG")
        if not value or Path(value).resolve() == places.kubeconfig.resolve():
            return None
        return cls(places, Path(value))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead kubectl, helm, kind and docker here."""
        path = f"{self.places.bin}:{os.environ.get('PATH', '')}"
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.places.work / "discovery"), "PATH": path}
        return own | (self.engine.environment if self.engine else {})

    def program(self, name: str) -> str:
        """Where kind, kubectl or helm is: the one that the harness built, else the one on PATH.

        Raises:
            ClusterError: neither is there.
        """
        path = shutil.which(name, path=self.environment["PATH"])
        if path is None:
            raise ClusterError(f"{name} is neither in {self.places.bin} nor on PATH: run `make cluster`, or install it")
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Runs kubectl against the cluster and returns what it prints; raises as `run_program` does."""
        return self.run_program("kubectl", *arguments, stdin=stdin, timeout=timeout)

    def try_kubectl(self, *arguments: str, timeout: float = 60) -> bool:
        """The same for a command that the cluster itself may cut short; whether it succeeded."""
        try:
            self.kubectl(*arguments, timeout=timeout)
        except CommandFailedError:
            return False
        return True

    def run_program(self, name: str, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Runs kubectl, helm or kind against the cluster and returns what it prints.

        Raises:
            CommandFailedError: it failed, or did not end within `timeout` seconds.
        """
        return run([self.program(name), *arguments], timeout, env=self.environment, stdin=stdin)

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get ... -o json`, parsed."""
        answer: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return answer

    def check(self) -> None:
        """Raises ClusterError unless the API answers and two nodes are ready."""
        try:
            nodes = self.get("nodes", "--request-timeout=10s")["items"]
        except CommandFailedError as error:
            message = f"the cluster of KUBECONFIG={self.kubeconfig} does not answer: correct or unset KUBECONFIG\n{error.output}"
            raise ClusterError(message) from error
        ready = [node["metadata"]["name"] for node in nodes if _is_ready(node)]
        if len(ready) < 2:
            raise ClusterError(f"the cluster of KUBECONFIG={self.kubeconfig} has {len(ready)} ready nodes; the tests need two or more")

    def is_whole(self, workers: int) -> bool:
        """Whether this is a running cluster of that many workers whose nodes are all ready."""
        nodes = self.nodes()
        if [node.state for node in nodes] != ["running"] * (workers + 1) or not self.kubeconfig.exists():
            return False
        try:
            return all(_is_ready(node) for node in self.get("nodes", "--request-timeout=10s")["items"])
        except CommandFailedError:
            return False

    def nodes(self) -> list[Node]:
        """The nodes that kind made, stopped ones too, the control plane first."""
        line = '{{.Names}} {{.Label "io.x-k8s.kind.role"}} {{.State}}'
        listing = self._docker("ps", "--all", "--filter", f"label=io.x-k8s.kind.cluster={NAME}", "--format", line)
        return sorted((Node(*each.split()) for each in listing.splitlines()), key=lambda node: (node.role, node.name))

    def workers(self) -> list[str]:
        """The names of the worker nodes."""
        return [node.name for node in self.nodes() if node.role == "worker"]

    def kill_node(self, name: str) -> None:
        """Ends every process of a node at once, as a power cut does."""
        self._docker("kill", name)

    def start_node(self, name: str) -> None:
        """Starts a killed node and waits until Kubernetes calls it ready."""
        started = time.time()
        self._docker("start", name)
        self._wait_until_ready(name, since=started)

    def pause_node(self, name: str) -> None:
        """Freezes a node: its processes live on and know nothing of it. While they fork fast, the kernel may not catch them all at once."""

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
        """Lets a frozen node go on."""
        self._docker("unpause", name)

    def disconnect_node(self, name: str) -> None:
        """Cuts a node off from all others; its processes go on."""
        address = self._address(name)
        if not address:
            raise ClusterError(f"{name} is cut off already, or does not run")
        self._cut_off(name).parent.mkdir(parents=True, exist_ok=True)
        self._cut_off(name).write_text(address)
        self._docker("network", "disconnect", NETWORK, name)

    def reconnect_node(self, name: str) -> None:
        """Takes a node that was cut off back, with the address that it had, and has it make its routes anew."""
        address = self._cut_off(name).read_text()
        try:
            self._docker("network", "connect", "--ip", address, NETWORK, name)
        except CommandFailedError:  # a network that kind made: an address cannot be chosen, and the first free one is mostly the old one
            self._docker("network", "connect", NETWORK, name)
        self._cut_off(name).unlink()
        self.restore_network(name)

    def restore_network(self, name: str) -> None:
        """Has a node's network service start over; it makes routes and guards by itself when the node boots."""
        if self.execute(name, "systemctl", "list-unit-files", "--no-legend", "pod-network.service").strip():
            self.execute(name, "systemctl", "restart", "guard.service", "pod-network.service")

    def install_guard(self, name: str) -> None:
        """Gives a node of kind's own image the guard that ours has (node/guard.service)."""
        unit = (FOLDER / "node/guard.service").read_text()
        self._docker("exec", "--interactive", name, "sh", "-c", "cat > /etc/systemd/system/guard.service", stdin=unit)
        self.execute(name, "systemctl", "enable", "--now", "guard.service")

    def execute(self, name: str, *command: str, timeout: float = 60) -> str:
        """Runs a command in a node."""
        return self._docker("exec", name, *command, timeout=timeout)

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Ends the processes of a container with SIGKILL, as from outside its pod: what restarts it then is the kubelet's business."""
        manifest = self.get("pod", pod, "--namespace", namespace)
        [identity] = [each["containerID"] for each in manifest["status"]["containerStatuses"] if each["name"] == container]
        task = identity.rpartition("/")[2]
        self.execute(manifest["spec"]["nodeName"], "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", task)

    def load_image(self, image: str | Path) -> None:
        """Puts an image into every worker: one of the engine by its name, or an archive of `docker save` by its path.

        The control plane takes no pods of users, and an image of a gigabyte or two costs half a minute a node.
        """
        kind = "image-archive" if Path(image).is_file() else "docker-image"
        nodes = ",".join(self.workers())
        run([self.program("kind"), "load", kind, str(image), "--name", NAME, "--nodes", nodes], 900, env=self.environment)

    def tag_image(self, image: str, tag: str) -> None:
        """Gives an image that is in the workers another tag as well."""
        name = f"docker.io/library/{image}"
        for node in self.workers():
            other = f"{name.rpartition(':')[0]}:{tag}"
            self.execute(node, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", name, other)

    def forget_older_images(self, image: str) -> None:
        """Removes from the workers what has another tag of the same repository: a trainer's image takes gigabytes of each node."""
        repository = image.rpartition(":")[0]
        for node in self.workers():
            names = self.execute(node, "ctr", "--namespace", "k8s.io", "images", "ls", "--quiet").split()
            old = [name for name in names if name.rpartition(":")[0].endswith(f"/{repository}") and not name.endswith(f"/{image}")]
            if old:
                self.execute(node, "ctr", "--namespace", "k8s.io", "images", "rm", *old)

    def make_shared_claim(self, name: str, namespace: str = "default", *, size: str = "10Gi") -> Path:
        """A PersistentVolumeClaim that pods of all nodes may write at once, and the folder of this machine that it is.

        The folder can be written by any user, since Kubernetes changes no ownership on such a volume.
        """
        folder = self.places.shared / namespace / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        inside = f"{SHARED}/{namespace}/{name}"
        both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume_spec = {**both, "capacity": {"storage": size}, "hostPath": {"path": inside}, "persistentVolumeReclaimPolicy": "Retain"}
        volume_spec["claimRef"] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace}
        claim_spec = {**both, "resources": {"requests": {"storage": size}}, "volumeName": f"{namespace}-{name}"}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{namespace}-{name}"}, "spec": volume_spec}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": claim_spec,
        }
        self.require_engine()
        if "Released" in self.kubectl("get", "persistentvolume", f"{namespace}-{name}", "--ignore-not-found"):  # of a claim of before
            self.kubectl("delete", "persistentvolume", f"{namespace}-{name}")
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [volume, claim]}))
        return folder

    def remove_shared_claim(self, name: str, namespace: str = "default") -> None:
        """Deletes claim, volume and folder."""
        self.kubectl("delete", "--ignore-not-found", "-n", namespace, f"persistentvolumeclaim/{name}")
        self.kubectl("delete", "--ignore-not-found", f"persistentvolume/{namespace}-{name}")
        shutil.rmtree(self.places.shared / namespace / name, ignore_errors=True)

    def wait_until(self, what: str, condition: Callable[[], bool], *, timeout: float) -> None:
        """Waits until a condition holds. A command that fails meanwhile means that it does not hold yet.

        Raises:
            ClusterError: it did not hold within `timeout` seconds. The message says what was waited for, and how the last command failed.
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
            pause = min(1.2 * pause, LONGEST_PAUSE)  # a look is a kubectl, which costs what it looks at

    def _wait_until_ready(self, name: str, *, since: float) -> None:
        """The condition of before a kill stays True for some 40 s: only a heartbeat after `since` counts."""

        def ready() -> bool:
            lease: str = self.get("lease", name, "-n", "kube-node-lease")["spec"]["renewTime"]
            return lease > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since)) and _is_ready(self.get("node", name))

        self.wait_until(f"node {name} ready", ready, timeout=NODE_READY_TIMEOUT)

    def require_engine(self) -> Engine:
        """The engine that the nodes run on; raises ClusterError where KUBECONFIG names a cluster of others."""
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
