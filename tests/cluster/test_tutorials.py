"""The tutorial for the users of a cluster: its commands work as they are written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import tutorials
from tests.support.cluster_jobs import CLAIM, ClusterJob, Ground
from tests.support.tutorials import ROOT, Command, File

SEEN = {"kubectl get tj -w": "Running", "muster watch digits-ddp": "attempt 1"}
"""What a reader waits for before Ctrl-C."""


@pytest.mark.tutorial
@pytest.mark.timeout(1200)
def test_the_commands_of_the_tutorial_for_a_cluster_work(ground: Ground, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(ground.cluster.kubectl("config", "view", "--flatten", "--minify"))
    environment = {**ground.cluster.environment, "KUBECONFIG": str(config)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', os.environ['PATH'])}"
    job = ClusterJob(ground, "digits-ddp")
    tutorials.run(Command(f"kubectl config set-context --current --namespace={ground.namespace}", ()), tmp_path, environment)
    done = []
    for step in tutorials.steps(ROOT / "docs/tutorials/cluster.md"):
        if isinstance(step, File):
            (tmp_path / step.name).write_text(step.content)
            continue
        if step.text.startswith("pip "):
            continue  # it is what the environment of the tests has
        if "claim.yaml" in step.text:  # this cluster has no such storage class, so the namespace has the claim already
            assert yaml.safe_load((tmp_path / "claim.yaml").read_text())["metadata"]["name"] == CLAIM
            step = Command("kubectl create --dry-run=client -f claim.yaml", ())
        if step.text.startswith("kubectl delete pod"):
            job.wait_until("a commit", lambda status: status.get("checkpoint"))
        output = tutorials.run(step, tmp_path, environment, interrupt_at=SEEN[step.text] if step.interrupted else None)
        done.append(output)
        if step.text.startswith("kubectl describe"):
            assert "Attempts:" in output
        if step.text.startswith("muster suspend"):
            job.wait_for_phase("Suspended")
        if step.text.startswith("muster resume"):
            job.wait_until("it goes on", lambda status: status.get("phase") == "Running")
    assert len(done) >= 10
    ground.cluster.wait_until("its pods are gone", lambda: not job.pods(), timeout=180)
