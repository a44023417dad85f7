"""The tutorial for those who install Muster: its commands work as they are written, as far as an API server can show."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

import local_cluster
from tests.support import tutorials
from tests.support.api_server.cluster import Cluster
from tests.support.tutorials import ROOT, Command, File

ELSEWHERE = ("docker ", "helm test ")
"""Commands that need an engine and a registry, and nodes. The tests on a cluster build the same targets and run `helm test`."""


def test_the_commands_of_the_tutorial_for_a_platform_work(cluster: Cluster, tmp_path: Path) -> None:
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["helm", "kubectl"])
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    env = {"PATH": f"{programs.path('helm').parent}:{os.environ['PATH']}", "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path)}
    outputs = {}
    for step in tutorials.steps(ROOT / "docs/tutorials/platform.md"):
        if isinstance(step, File):
            (tmp_path / step.name).write_text(step.content)
        elif not step.text.startswith(ELSEWHERE):
            # The release of the tests is there already. So the chart is rendered.
            text = step.text.replace("helm install", "helm template").replace("helm upgrade", "helm template")
            text += " --kube-version 1.30.0" if "helm" in text else ""
            outputs[step.text] = tutorials.run(Command(text, step.shown), tmp_path, env)
    kinds = [command.split()[2] for command in outputs if command.startswith("kubectl create")]
    assert kinds == ["namespace", "quota", "rolebinding"]
    try:
        [upgrade] = [output for command, output in outputs.items() if command.startswith("helm upgrade")]
        deployments = [each for each in yaml.safe_load_all(upgrade) if each and each["kind"] == "Deployment"]
        assert [each["spec"]["replicas"] for each in deployments] == [2]
        labels = cluster.admin.get("/api/v1/namespaces/team-a")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    finally:
        tutorials.run(Command("kubectl delete quota,rolebinding --all --namespace team-a", ()), tmp_path, env)
        tutorials.run(Command("kubectl delete namespace team-a --wait=false", ()), tmp_path, env)
