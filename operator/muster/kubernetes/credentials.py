"""Credentials for the API server: those of the pod of this process, of a kubeconfig, or of a token.

Source of the rules on kubeconfig files, contexts and namespaces: "Organizing Cluster Access Using kubeconfig Files" in the Kubernetes
documentation.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kubernetes.aio import client, config

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


async def load_configuration() -> client.Configuration:
    """The pod's own credentials, or else those of the kubeconfig. Raises ConfigException if there is neither a pod nor a kubeconfig."""
    configuration = _unlimited()
    if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


async def from_kubeconfig(kubeconfig: str | None, context: str | None) -> tuple[client.Configuration, str, str]:
    """The credentials of a kubeconfig, or else the pod's own, with the namespace and the name of the context. None stands for the default.

    Raises ConfigException, or the error of a kubeconfig that cannot be read.
    """
    configuration = _unlimited()
    paths = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
    logging.getLogger("kubernetes.aio").setLevel(logging.ERROR)  # the caller reports the same error
    try:
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, context=context, client_configuration=configuration, persist_config=False
        )
    except config.ConfigException:
        namespace = None if kubeconfig or context else _namespace_of_pod()
        if namespace is None:
            raise config.ConfigException(f"the kubeconfig {paths} {_fault(paths)}") from None
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return configuration, namespace, "the pod's own cluster"
    current = loader.current_context
    return configuration, str(current["context"].get("namespace") or "default"), str(current["name"])


def from_token(token: str, *, server: str, authority: str | None) -> client.Configuration:
    """Only the rights of a token. `authority` is the file with the certificates of the API server."""
    configuration = _configuration(server)
    if authority is not None:
        configuration.ssl_ca_cert = authority
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    return configuration


def _unlimited() -> client.Configuration:
    configuration = _configuration()
    configuration.connection_pool_maxsize = 0  # no limit, because watches, logs and the lease must not wait for other requests
    return configuration


def _configuration(server: str | None = None) -> client.Configuration:
    configuration = client.Configuration(host=server)
    # With trust_env, aiohttp looks for a .netrc in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def _fault(paths: str) -> str:
    """The problem of a kubeconfig, which may be several files."""
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep)):
        return "does not exist"
    return "has no such context, or is not complete (kubectl config get-contexts)"


def _namespace_of_pod() -> str | None:
    """The namespace of the pod that this process runs in. None outside a cluster."""
    try:
        return _POD_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return None
