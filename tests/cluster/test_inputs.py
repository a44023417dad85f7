"""Inputs of a job in a cluster: real pods fetch a model from a hub in the cluster, and from nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local_cluster.installation import Installation
from tests.support import hub
from tests.support.cluster_jobs import Ground, Manifest, job

STEPS = 12
PORT = 8080
TRAIN = """
import json, sys
from pathlib import Path
import muster_training as muster

steps = json.loads(Path(sys.argv[1], "config.json").read_text())["steps"]
weights = Path(sys.argv[1], "model", "weights.bin").read_bytes()
try:
    Path(sys.argv[1], "config.json").write_text("{}")
except OSError as error:
    print("read-only:", error.errno, flush=True)
for step in range(1, steps + 1):
    muster.report(step=step, total=steps, loss=1 / step)
print("trained on", len(weights), "bytes", flush=True)
"""
FILL = """
import sys
from pathlib import Path
repository = Path("/tmp/hub/models/org/tiny")
(repository / "model").mkdir(parents=True)
(repository / "config.json").write_text('{"steps": 12}')
(repository / "model" / "weights.bin").write_bytes(bytes(range(256)) * 1024)
"""
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def hub_of(image: str) -> list[Manifest]:
    """A pod of a trainer image that serves the hub, and its Service."""
    container = {
        "name": "hub",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"python /code/fill.py && exec python /code/hub.py /tmp/hub {PORT}"],
        "securityContext": RESTRICTED,
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "code", "configMap": {"name": "hub"}}, {"name": "tmp", "emptyDir": {}}],
    }
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub", "labels": {"app": "hub"}}, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hub"},
            "spec": {"selector": {"app": "hub"}, "ports": [{"port": PORT}]},
        },
    ]


@pytest.mark.timeout(900)
def test_pods_fetch_a_model_from_the_hub_of_the_cluster_and_train_on_it(muster: Installation, ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fill.py").write_text(FILL)
    ground.kubectl("create", "configmap", "code", f"--from-file={tmp_path / 'train.py'}")
    ground.kubectl("create", "configmap", "hub", f"--from-file={tmp_path / 'fill.py'}", f"--from-file={hub.__file__}")
    for manifest in hub_of(muster.images["trainer-pytorch"]):
        ground.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    ground.kubectl("wait", "--for=condition=Ready", "pod/hub", "--timeout=180s", timeout=200)
    endpoint = {"name": "HF_ENDPOINT", "value": f"http://hub.{ground.namespace}.svc:{PORT}"}
    template = {"spec": {"containers": [{"name": "trainer", "env": [endpoint]}]}}
    trainer = {"command": ["python", "train.py", "$(MUSTER_INPUT_BASE)"], "code": {"configMap": {"name": "code"}}}
    inputs = [{"name": "base", "source": "hf://org/tiny@main"}]
    roles = {"worker": {"replicas": 2, "template": template}}
    reads = ground.apply(job("reads", strategy="DDP", trainer=trainer, inputs=inputs, roles=roles))
    assert reads.wait_for_end() == "Succeeded", reads.story()
    status = reads.status
    [found] = status["inputs"]
    assert (found["phase"], found["ready"], found["replicas"]) == ("Ready", 2, 2), reads.story()
    assert len(found["revision"]) == 40
    assert found["bytes"] == found["totalBytes"] > 256 * 1024
    assert status["progress"]["step"] == STEPS
    assert status["restarts"]["total"] == 0
    for replica in (0, 1):
        log = ground.kubectl("logs", f"reads-worker-{replica}")
        assert f"trained on {256 * 1024} bytes" in log
        assert "read-only: 30" in log

    inputs = [{"name": "base", "source": "hf://org/none"}]
    refused = ground.apply(job("refused", strategy="DDP", trainer=trainer, inputs=inputs, roles=roles))
    assert refused.wait_for_end() == "Failed", refused.story()
    assert refused.attempts[0]["reason"] == "InputNotFound", refused.story()
    assert "org/none does not exist" in refused.attempts[0]["message"]
    assert len(refused.attempts) == 1
