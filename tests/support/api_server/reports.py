"""Reports as the supervisor of a pod sends them."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from typing import Any

from tests.support.api_server.api import Object
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until


def token(jobs: Jobs, pod: Object, audience: str = "muster") -> str:
    """The content of the pod's projected volume, as a kubelet writes it."""
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    spec = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
    folder = f"/api/v1/namespaces/{jobs.namespace}/serviceaccounts/default/token"
    answer = jobs.api.create(folder, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    return str(answer["status"]["token"])


def report(pod: Object, sequence: int = 1, **fields: Any) -> Object:
    metadata = pod["metadata"]
    labels = metadata["labels"]
    return {
        "job": f"{metadata['namespace']}/{labels['muster.dev/job-name']}",
        "jobUid": labels["muster.dev/job-uid"],
        "pod": metadata["name"],
        "podUid": metadata["uid"],
        "role": labels["muster.dev/role"],
        "index": int(labels["muster.dev/index"]),
        "attempt": int(labels["muster.dev/attempt"]),
        "sequence": sequence,
        **fields,
    }


def progress(step: int) -> Object:
    return {"step": step, "totalSteps": 1000, "epoch": 0, "loss": f"{1 / (step + 1):.4f}", "samplesPerSecond": 10.0, "updatedAt": None}


def post(operator: OperatorProcess, body: bytes, headers: dict[str, str], path: str = "/v1/report") -> tuple[int, Object]:
    """Status and answer of a request to the channel of an operator. Sends it again if the channel closes the connection: it reads a body
    that it refuses for half a second only, which a busy machine may exceed."""

    def answered() -> tuple[int, Object] | None:
        with closing(http.client.HTTPSConnection("127.0.0.1", operator.coordination, timeout=60, context=operator.trusted())) as connection:
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                text = answer.read()
            except (ConnectionError, ssl.SSLEOFError):
                return None
        return answer.status, json.loads(text) if text.startswith(b"{") else {}

    return wait_until(answered, "an answer of the channel")


def tell(operator: OperatorProcess, bearer: str, content: Object) -> tuple[int, Object]:
    """Sends a report with a token."""
    return post(operator, json.dumps(content).encode(), {"Authorization": f"Bearer {bearer}"})
