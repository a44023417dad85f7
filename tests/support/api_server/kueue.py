"""Kueue's own controller and webhooks, beside an API server."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

import local_cluster
from local_cluster.ports import free_ports
from tests.support.api_server.api import Api, ApiError, Object
from tests.support.waiting import wait_until

API = "/apis/kueue.x-k8s.io/v1beta1"
_GROUP = "kueue.x-k8s.io"
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


@contextmanager
def kueue(folder: Path, kubeconfig: Path) -> Iterator[None]:
    """Runs Kueue, with webhooks for its own objects. Its CRDs exist already."""
    api, (health, webhook) = Api.of(kubeconfig), free_ports(2)
    authority = _certificate(folder)
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},
    }
    (folder / "kueue.yaml").write_text(yaml.safe_dump(configuration))
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["kueue"])
    command = [str(programs.path("kueue")), f"--config={folder / 'kueue.yaml'}", f"--kubeconfig={kubeconfig}"]
    with (folder / "kueue.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        for manifest in _webhooks(f"https://127.0.0.1:{webhook}", authority):
            api.create(f"/apis/admissionregistration.k8s.io/v1/{_HOOKS[manifest['kind']]}", manifest)
        wait_until(lambda: _answers(api) or process.poll() is not None, "the webhooks of Kueue answer")
        assert process.poll() is None, (folder / "kueue.log").read_text()[-2000:]
        yield
    finally:
        process.terminate()
        process.wait(30)


def _source() -> Path:
    programs = local_cluster.Programs(local_cluster.Places.default())
    return programs.module_folder("kueue", "sigs.k8s.io/kueue") / "config" / "components"


def _certificate(folder: Path) -> str:
    """A certificate for 127.0.0.1. Returns it as a caBundle."""
    command = [
        *["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"],
        *["-subj", "/CN=kueue", "-addext", "subjectAltName=IP:127.0.0.1"],
        *["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")],
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
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
        flavor = {"apiVersion": f"{_GROUP}/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
        return bool(api.request("POST", f"{API}/resourceflavors?dryRun=All", flavor))
    return False
