"""etcd and kube-apiserver alone, on loopback. They are enough for everything that admission decides. They are ready in seconds, and leave
no trace.

The scheduler and the controller manager run only if the caller requests them. No node runs. The caller is cluster-admin by a token. The API
server makes its own certificate, and the kubeconfig trusts only that certificate.
"""

import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .errors import ClusterError
from .places import Places
from .ports import free_ports
from .process import run, running
from .programs import API_SERVER, CONTROL_PROGRAMS, OLDEST_API_SERVER, Programs

READY_TIMEOUT = 180.0
WHICH_VARIABLE = "MUSTER_TEST_API_SERVER"
"""Selects the API server: `newest`, the default, or `oldest`, of the oldest Kubernetes that Muster supports."""
_WHICH = {"newest": API_SERVER, "oldest": OLDEST_API_SERVER}
_CONTROLLERS = ("garbage-collector-controller", "namespace-controller", "podgroup-protection-controller")


@contextmanager
def api_server(
    places: Places, *, arguments: Sequence[str] = (), feature_gates: Sequence[str] = (), controllers: bool = False
) -> Iterator[Path]:
    """A running API server. Yields the path of its kubeconfig.

    Args:
        places: the folders of its programs. Missing programs are built.
        arguments: further arguments of kube-apiserver.
        feature_gates: feature gates to enable in every program of Kubernetes.
        controllers: whether kube-scheduler and kube-controller-manager run too. The latter collects garbage, and removes namespaces and
            PodGroups. No controller manages nodes, so a caller that adds a node must remove its taint.

    Raises:
        ClusterError: the server did not become ready, or the environment names no API server. The message has the end of its log.
    """
    programs, program = Programs(places), _program()
    programs.ensure(["etcd", program, "kubectl", *(CONTROL_PROGRAMS if controllers else ())])
    gates = [f"--feature-gates={','.join(f'{gate}=true' for gate in feature_gates)}"] if feature_gates else []
    with tempfile.TemporaryDirectory(prefix="muster-apiserver-") as name, ExitStack() as stack:
        folder = Path(name)
        etcd_client, etcd_peer, port = free_ports(3)
        etcd_url, peer_url = f"http://127.0.0.1:{etcd_client}", f"http://127.0.0.1:{etcd_peer}"
        etcd = [
            *[str(programs.path("etcd")), "--name=only", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"],
            "--quota-backend-bytes=8589934592",  # by default 2 GiB, which the history of 100,000 pods can fill
            *[f"--listen-client-urls={etcd_url}", f"--advertise-client-urls={etcd_url}", f"--listen-peer-urls={peer_url}"],
            *[f"--initial-advertise-peer-urls={peer_url}", f"--initial-cluster=only={peer_url}"],
        ]
        token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        run(["openssl", "genrsa", "-out", folder / "account.key", "2048"], 60)
        server = [
            *[str(programs.path(program)), f"--etcd-servers={etcd_url}", "--bind-address=127.0.0.1", f"--secure-port={port}"],
            *["--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", f"--cert-dir={folder / 'certificates'}"],
            *["--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", f"--token-auth-file={folder / 'tokens.csv'}"],
            *[f"--service-account-signing-key-file={folder / 'account.key'}", f"--service-account-key-file={folder / 'account.key'}"],
            *["--service-account-issuer=https://kubernetes.default.svc", "--profiling=false", *gates, *arguments],
        ]
        stack.enter_context(running(etcd, folder / "etcd.log"))
        process = stack.enter_context(running(server, folder / "apiserver.log"))
        kubeconfig = folder / "kubeconfig"
        _write_kubeconfig(kubeconfig, port=port, token=token, certificate=folder / "certificates" / "apiserver.crt")
        _wait_until_ready(process, kubeconfig, kubectl=programs.path("kubectl"), log=folder / "apiserver.log")
        if controllers:
            for name, command in _controllers(programs, folder, kubeconfig).items():
                stack.enter_context(running([*command, *gates], folder / f"{name}.log"))
        yield kubeconfig


def _program() -> str:
    """The API server that the environment selects."""
    which = os.environ.get(WHICH_VARIABLE) or "newest"
    if which not in _WHICH:
        raise ClusterError(f"{WHICH_VARIABLE} must be {' or '.join(_WHICH)}, not {which!r}")
    return _WHICH[which]


def _controllers(programs: Programs, folder: Path, kubeconfig: Path) -> dict[str, list[str]]:
    """The commands of the scheduler and of the controller manager."""
    configuration = scheduler_configuration(kubeconfig)
    (folder / "scheduler.yaml").write_text(json.dumps(configuration))
    manager = [
        *[str(programs.path("kube-controller-manager")), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"],
        *[f"--controllers={','.join(_CONTROLLERS)}", "--kube-api-qps=1000", "--kube-api-burst=1000"],
    ]
    scheduler = [str(programs.path("kube-scheduler")), f"--config={folder / 'scheduler.yaml'}", "--secure-port=0"]
    return {"kube-controller-manager": manager, "kube-scheduler": scheduler}


def scheduler_configuration(kubeconfig: Path) -> dict[str, Any]:
    """The configuration of a scheduler that tries pods again after a second at most."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }


def _write_kubeconfig(path: Path, *, port: int, token: str, certificate: Path) -> None:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "only", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "only", "context": {"cluster": "only", "user": "admin"}}],
        "current-context": "only",
    }
    path.touch(0o600)
    path.write_text(json.dumps(config))


def _wait_until_ready(process: subprocess.Popen[bytes], kubeconfig: Path, *, kubectl: Path, log: Path) -> None:
    """Waits for the `default` namespace, which a new API server creates last before it accepts other objects."""
    deadline = time.monotonic() + READY_TIMEOUT
    probe = [str(kubectl), "get", "namespace/default", "--request-timeout=2s"]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(kubeconfig.parent / "discovery")}
    while subprocess.run(probe, env=environment, capture_output=True, timeout=30, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            state = f"not ready after {READY_TIMEOUT:.0f} s" if process.poll() is None else f"ended with {process.returncode}"
            raise ClusterError(f"kube-apiserver: {state}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))
        time.sleep(0.2)
