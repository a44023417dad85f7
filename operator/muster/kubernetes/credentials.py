"""Credentials for the API server, from the pod of this process or else from the kubeconfig. The gateway and kopf use the same."""

from __future__ import annotations

import os

from kubernetes.aio import client, config


async def load_configuration() -> client.Configuration:
    """The configuration of the client. Raises ConfigException if there is neither a pod nor a kubeconfig."""
    configuration = client.Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = 0  # no limit, because watches and the lease must not wait for the creation of pods
    # With trust_env, aiohttp looks for a .netrc in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration
