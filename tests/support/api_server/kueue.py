"""Kueue's own controller and webhooks, beside an API server."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

import local_cluster
from local_cluster.ports import free_ports
from tests.support.api_server.api import Api, ApiError, Object
from tests.support.waiting import wait_until

WHICH_VARIABLE = "MUSTER_TEST_KUEUE"
"""Selects Kueue: `newest`, the default, or `oldest`, which serves only v1beta1."""
_PROGRAM, VERSION = {"newest": ("kueue", "v1beta2"), "oldest": ("kueue-oldest", "v1beta1")}[os.environ.get(WHICH_VARIABLE, "newest")]
_GROUP = "kueue.x-k8s.io"
API = f"/apis/{_GROUP}/{VERSION}"
_VISIBILITY_PORT = 8082  # fixed in Kueue
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_ROOT_WITH_CERTIFICATES = """
for each in visibility etc/kueue/metrics/certs; do
  mkdir -p /tmp/root/$each
  cp {folder}/tls.crt {folder}/tls.key /tmp/root/$each
done
cp /etc/hosts /etc/resolv.conf /etc/nsswitch.conf /tmp/root/etc
for each in $(ls -A / | grep -v '^etc$'); do
  if [ -L /$each ]; then cp -P /$each /tmp/root; continue; fi
  if [ -d /$each ]; then mkdir -p /tmp/root/$each && mount --rbind /$each /tmp/root/$each; fi
done
"""
"""A root folder with the certificate where Kueue reads those of its visibility API and of its metrics. It cannot be told other places."""
_OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
_HOOKS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


def define(api: Api) -> None:
    """The definitions of Kueue's objects, from its own source."""
    for file in sorted((_source() / "crd" / "bases").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    wait_until(lambda: _serves(api), "Workloads are served")


def kueue_object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": f"{_GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def quota(flavor: str, cpu: int) -> list[Object]:
    """The `resourceGroups` of a ClusterQueue with so many CPUs of this flavor."""
    return [{"coveredResources": ["cpu"], "flavors": [{"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cpu}]}]}]


def can_show_positions() -> bool:
    """Whether Kueue can serve its visibility API here: its port is fixed, and it reads the API server's address from fixed paths, so it
    gets a file system of its own."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("0.0.0.0", _VISIBILITY_PORT))
        command = [*_OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/tmp"]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    return False


def aggregation(folder: Path) -> list[str]:
    """Arguments of an API server that passes requests on to Kueue's visibility API, in the name of their users."""
    key, certificate = folder / "aggregator.key", folder / "aggregator.crt"
    _make_certificate(key, certificate, "aggregator")
    headers = {"username-headers": "X-Remote-User", "group-headers": "X-Remote-Group", "extra-headers-prefix": "X-Remote-Extra-"}
    return [
        f"--proxy-client-cert-file={certificate}",
        f"--proxy-client-key-file={key}",
        f"--requestheader-client-ca-file={certificate}",
        "--requestheader-allowed-names=aggregator",
        *(f"--requestheader-{name}={value}" for name, value in headers.items()),
    ]


@contextmanager
def kueue(folder: Path, kubeconfig: Path, *, shows_positions: bool = False, ready_seconds: int = 0, **settings: Any) -> Iterator[None]:
    """Runs Kueue, with its webhooks for its own objects. Its definitions exist already.

    `shows_positions`: it serves its visibility API, too. `ready_seconds`: it evicts a job whose pods do not run after this time. `settings`
    are more parts of its configuration.
    """
    api, (health, webhook) = Api.of(kubeconfig), free_ports(2)
    authority = _certificate(folder)
    configuration: dict[str, Any] = {
        "apiVersion": f"config.kueue.x-k8s.io/{VERSION}",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": shows_positions},
        **settings,
    }
    if ready_seconds:
        requeuing = {"timestamp": "Eviction", "backoffBaseSeconds": 1}
        waiting = {"timeout": f"{ready_seconds}s", "blockAdmission": False, "requeuingStrategy": requeuing}
        configuration["waitForPodsReady"] = {**waiting, **({"enable": True} if VERSION == "v1beta1" else {})}
    (folder / "kueue.yaml").write_text(yaml.safe_dump(configuration))
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure([_PROGRAM])
    environment = dict(os.environ)
    command = [*_in_cluster(folder, kubeconfig, environment), str(programs.path(_PROGRAM)), f"--config={folder / 'kueue.yaml'}"]
    command.append(f"--kubeconfig={kubeconfig}")
    with local_cluster.running(command, folder / "kueue.log", env=environment) as process:
        for manifest in _webhooks(f"https://127.0.0.1:{webhook}", authority):
            api.create(f"/apis/admissionregistration.k8s.io/v1/{_HOOKS[manifest['kind']]}", manifest)
        wait_until(lambda: _answers(api) or process.poll() is not None, "the webhooks of Kueue answer")
        assert process.poll() is None, (folder / "kueue.log").read_text()[-2000:]
        if shows_positions:
            _register_visibility(api)
        yield


def _source() -> Path:
    programs = local_cluster.Programs(local_cluster.Places.default())
    return programs.module_folder(_PROGRAM, "sigs.k8s.io/kueue") / "config" / "components"


def _in_cluster(folder: Path, kubeconfig: Path, environment: dict[str, str]) -> list[str]:
    """The beginning of a command that sees the API server as a pod does, and a /tmp of its own, in which Kueue leaves a certificate."""
    context = yaml.safe_load(kubeconfig.read_text())
    cluster, user = context["clusters"][0]["cluster"], context["users"][0]["user"]
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    environment |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    account = folder / "serviceaccount"
    account.mkdir()
    (account / "token").write_text(user["token"])
    (account / "ca.crt").write_bytes(Path(cluster["certificate-authority"]).read_bytes())
    kept = [folder, kubeconfig.parent]
    lines = ["set -e", "mount -t tmpfs none /var/run", f"mkdir -p {_ACCOUNT}", f"mount --bind {quote(str(account))} {_ACCOUNT}"]
    for number, path in enumerate(kept):
        lines += [f"mkdir /var/run/kept-{number}", f"mount --bind {quote(str(path))} /var/run/kept-{number}"]
    lines.append("mount -t tmpfs none /tmp")
    for number, path in enumerate(kept):
        lines += [f"mkdir -p {quote(str(path))}", f"mount --bind /var/run/kept-{number} {quote(str(path))}"]
    lines += [_ROOT_WITH_CERTIFICATES.format(folder=quote(str(folder)))]
    return [*_OWN_MOUNTS, "sh", "-c", "\n".join([*lines, 'exec chroot /tmp/root "$@"']), "sh"]


def _register_visibility(api: Api) -> None:
    """Makes the API server pass requests on to Kueue, which is no pod."""
    api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    service = {"type": "ExternalName", "externalName": "localhost"}
    api.create("/api/v1/namespaces/kueue-system/services", {"metadata": {"name": "visibility-server"}, "spec": service})
    registration = yaml.safe_load((_source() / "visibility" / f"apiservice_{VERSION}.yaml").read_text())
    reference = {"namespace": "kueue-system", "name": "visibility-server", "port": _VISIBILITY_PORT}
    registration["spec"] = {**registration["spec"], "service": reference, "insecureSkipTLSVerify": True}
    api.create("/apis/apiregistration.k8s.io/v1/apiservices", registration)

    def is_served() -> bool:
        with suppress(ApiError):
            return bool(api.get(f"/apis/{registration['spec']['group']}/{VERSION}"))
        return False

    wait_until(is_served, "the visibility API of Kueue answers")


def _make_certificate(key: Path, certificate: Path, name: str, *options: str) -> None:
    command = [
        *["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"],
        *["-subj", f"/CN={name}", *options, "-keyout", str(key), "-out", str(certificate)],
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _certificate(folder: Path) -> str:
    """A certificate for 127.0.0.1. Returns it as a caBundle."""
    _make_certificate(folder / "tls.key", folder / "tls.crt", "kueue", "-addext", "subjectAltName=IP:127.0.0.1")
    return base64.b64encode((folder / "tls.crt").read_bytes()).decode()


def _webhooks(url: str, authority: str) -> list[Object]:
    manifests = [each for each in yaml.safe_load_all((_source() / "webhook" / "manifests.yaml").read_text()) if each]
    for manifest in manifests:
        own = [each for each in manifest["webhooks"] if each["rules"][0]["apiGroups"] == [_GROUP]]
        for each in own:
            each["clientConfig"] = {"url": f"{url}{each['clientConfig']['service']['path']}", "caBundle": authority}
        manifest["metadata"] = {"name": f"kueue-{manifest['kind'].lower()}"}
        manifest["webhooks"] = own
    return manifests


def _serves(api: Api) -> bool:
    """Whether the API server serves the objects and lists them in its discovery, which comes later. Kueue ends at its start if they are not
    listed."""
    plurals = {"workloads", "localqueues", "clusterqueues", "resourceflavors"}
    with suppress(ApiError):
        listed = {each["name"] for each in api.get(API)["resources"]}
        return plurals <= listed and bool(api.get(f"/apis/{_GROUP}")) and all(api.get(f"{API}/{plural}") for plural in plurals)
    return False


def _answers(api: Api) -> bool:
    with suppress(ApiError):
        flavor = kueue_object("ResourceFlavor", "probe", {})
        return bool(api.request("POST", f"{API}/resourceflavors?dryRun=All", flavor))
    return False
