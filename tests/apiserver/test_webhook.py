"""The webhook of an installation, with the operator on a real API server."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.operators import operating
from tests.support.hooked import receiving
from tests.support.waiting import wait_until

KEY = bytes(range(24))


def test_a_url_is_notified_when_jobs_end_also_if_it_was_away(cluster: Cluster, jobs: Jobs, kubelet: Kubelet, tmp_path: Path) -> None:
    secret = {"MUSTER_WEBHOOK_SECRET": base64.b64encode(KEY).decode()}
    with receiving() as receiver:
        receiver.answers = [503]
        with operating(cluster, tmp_path / "operator", env=secret, webhook={"url": receiver.url}):
            jobs.submit(job("digits", workers=1))
            [pod] = jobs.pods_of("digits", 1)
            kubelet.run(pod)
            kubelet.end(pod, 0)
            jobs.reaches("digits", "Succeeded")
            jobs.submit(job("nonsense", trainer={"task": "nonsense"}))
            wait_until(lambda: len(receiver.received) == 2, "both jobs are reported")
        sent = {each["data"]["name"]: each["type"] for each in receiver.received}
        assert sent == {"digits": "job.succeeded", "nonsense": "job.invalid"}
        assert all(receiver.is_signed(number, KEY) for number in range(len(receiver.requests)))
        assert all(each["data"]["namespace"] == jobs.namespace for each in receiver.received)
