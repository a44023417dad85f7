"""How to reach the API server: from the pod that this runs in, else from the kubeconfig. Our requests and kopf go the same way."""

from __future__ import annotations

import os

import kopf
from kubernetes.aio import client, config


async def load_configuration() -> client.Configuration:
    """For our own requests. Raises what the client raises where there is neither pod nor kubeconfig."""
    configuration = client.Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = 0  # no limit: neither a watch nor the lease may have to wait for pods that are being made
    # With trust_env, aiohttp looks for a .netrc in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


async def login() -> kopf.ConnectionInfo:
    """For kopf, which asks anew when its token is no longer taken: a pod's token changes within the hour."""
    configuration = await load_configuration()
    scheme, _, token = (await configuration.get_api_key_with_prefix("BearerToken") or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme if token else None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
