"""The API server, with the chart's CRD, roles and service account."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import yaml

import local_cluster
from tests.support.api_server.api import JOBS, Api, ApiError, Object
from tests.support.api_server.kubelet import PODS
from tests.support.waiting import wait_until

CHART = Path(__file__).resolve().parents[3] / "charts" / "muster"
RELEASE_NAMESPACE = "muster-system"
ACCOUNT = "muster"
_INSTALLED = (
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "Secret",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "FlowSchema",
)
_PLURALS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}
_AUDITED = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:muster-system:muster"]
  - level: None
"""


class Cluster:
    """An API server. `admin` may do everything. `configuration` is that of the operator, as the chart writes it. `scraper` is a token
    that may read metrics."""

    def __init__(self, kubeconfig: Path, audit: Path, options: Sequence[str] = ()) -> None:
        self.kubeconfig = kubeconfig
        self.admin = Api.of(kubeconfig)
        self.audit = audit
        self._options = options
        self.configuration: Object = {}
        self.scraper = ""
        self._numbers = itertools.count(1)
        self._restarted: list[subprocess.Popen[bytes]] = []

    def install(self, chart: Path = CHART, *options: str) -> None:
        """The objects of the chart without the operator. `options` are more arguments of helm."""
        manifests = rendered(*self._options, *options, chart=chart)
        self.admin.apply(f"/api/v1/namespaces/{RELEASE_NAMESPACE}", _named("v1", "Namespace", RELEASE_NAMESPACE))
        for manifest in sorted((each for each in manifests if each["kind"] in _INSTALLED), key=lambda each: _INSTALLED.index(each["kind"])):
            folder = _PLURALS[manifest["kind"]].format(manifest["metadata"].get("namespace"))
            self.admin.apply(f"{folder}/{manifest['metadata']['name']}", manifest)
        [config] = [each for each in manifests if each["kind"] == "ConfigMap" and "operator.yaml" in each["data"]]
        self.configuration = yaml.safe_load(config["data"]["operator.yaml"])
        for definition in (each for each in manifests if each["metadata"]["name"] == "trainingjobs.muster.dev"):
            [version] = [each["name"] for each in definition["spec"]["versions"] if each["storage"]]
            self._jobs = JOBS.replace("v1beta1", version)
        wait_until(self._serves, "TrainingJobs are served")
        self.scraper = self._reader_of_metrics()

    def _reader_of_metrics(self) -> str:
        """The token of an account with the chart's role for readers of metrics."""
        accounts = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/serviceaccounts"
        self.admin.apply(f"{accounts}/prometheus", _named("v1", "ServiceAccount", "prometheus"))
        binding = {
            **_named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "prometheus"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{ACCOUNT}-metrics-reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": RELEASE_NAMESPACE}],
        }
        self.admin.apply("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/prometheus", binding)
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
        return str(self.admin.create(f"{accounts}/prometheus/token", wanted)["status"]["token"])

    def namespace(self, prefix: str) -> str:
        """A new namespace, with the service account of pods."""
        name = f"{prefix}-{next(self._numbers)}"
        self.admin.create("/api/v1/namespaces", _named("v1", "Namespace", name))
        self.admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", _named("v1", "ServiceAccount", "default"))
        return name

    def empty(self, namespace: str) -> None:
        """Removes jobs, pods and services, because there is no garbage collector."""
        self.admin.delete(self._jobs.format(namespace))
        for pod in self.admin.items(f"/api/v1/namespaces/{namespace}/pods"):
            self.admin.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        for service in self.admin.items(f"/api/v1/namespaces/{namespace}/services"):
            self.admin.delete(f"/api/v1/namespaces/{namespace}/services/{service['metadata']['name']}")

    def account_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig with the rights of the operator's service account."""
        folder = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        token = self.admin.create(folder, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "only", "cluster": {"server": self.admin.server, "certificate-authority": self.admin.authority}}],
            "users": [{"name": "operator", "user": {"token": token["status"]["token"]}}],
            "contexts": [{"name": "only", "context": {"cluster": "only", "user": "operator"}}],
            "current-context": "only",
        }
        path.write_text(json.dumps(config))
        return path

    def requests(self) -> list[Object]:
        """The requests of operators to the API server so far: verb, requestURI, responseStatus, userAgent."""
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in self.audit.read_text().splitlines() if line.endswith("}")]
        return []

    @contextmanager
    def down(self) -> Iterator[None]:
        """Kills the API server. At the end it starts again with its old content."""
        server = self._server()
        command = server.cmdline()
        server.send_signal(signal.SIGKILL)
        server.wait(30)
        try:
            yield
        finally:
            again = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._restarted.append(again)
            wait_until(self._serves, "the API server serves again")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The API server accepts connections, but answers no request until the end."""
        server = self._server()
        server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.send_signal(signal.SIGCONT)

    def end_restarted(self) -> None:
        """Ends the API servers that `down` has started."""
        while self._restarted:
            server = self._restarted.pop()
            server.kill()  # it would end only after the watches of all programs
            server.wait(30)

    def _server(self) -> psutil.Process:
        port = re.search(r":(\d+)$", self.admin.server)
        assert port
        argument = f"--secure-port={port[1]}"
        [server] = [each for each in psutil.Process().children(recursive=True) if argument in _words(each)]
        return server

    def _serves(self) -> bool:
        """Whether the server serves all kinds that tests use. Each kind has a cache of its own, and custom kinds come last."""
        with suppress(http.client.HTTPException, OSError, ApiError):
            return all(self.admin.get(path.format("default")) for path in ("/readyz", PODS, _PLURALS["Service"], self._jobs))
        return False


def _words(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):  # also raised for a zombie
        return process.cmdline()
    return []


@contextmanager
def running(
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    feature_gates: Sequence[str] = (),
    controllers: bool = False,
    options: Sequence[str] = (),
) -> Iterator[Cluster]:
    """A cluster with the chart in it; its audit log is in `folder`. `options` are for helm. The rest is for `local_cluster.api_server`."""
    policy, log = folder / "audit-policy.yaml", folder / "audit.log"
    policy.write_text(_AUDITED)
    audit = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    places, arguments = local_cluster.Places.default(), [*audit, *arguments]
    with local_cluster.api_server(places, arguments=arguments, feature_gates=feature_gates, controllers=controllers) as kubeconfig:
        cluster = Cluster(kubeconfig, log, options)
        cluster.install()
        try:
            yield cluster
        finally:
            cluster.end_restarted()


def rendered(*options: str, chart: Path = CHART) -> list[Object]:
    """The objects of the chart; `options` are more arguments of helm."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["helm"])
    command = [
        str(programs.path("helm")),
        "template",
        ACCOUNT,
        str(chart),
        "-n",
        RELEASE_NAMESPACE,
        "--kube-version=1.34",
        "--no-hooks",
        *options,
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def _named(api_version: str, kind: str, name: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
