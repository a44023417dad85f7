"""What a platform engineer does with the chart: install, test, upgrade, restrict, uninstall; no job is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from local_cluster import CommandFailedError
from local_cluster.installation import CHART, NAMESPACE, RELEASE, Installation
from tests.cluster.faults import FAULTS, check_succeeded
from tests.support.cluster_jobs import ClusterJob, Ground, digits
from tests.support.waiting import wait_until

Uninterrupted = Callable[[str], ClusterJob]


@pytest.fixture
def restored(muster: Installation) -> Iterator[Installation]:
    """For a test that changes the installation: afterwards it is as it was."""
    yield muster
    muster.install()


@pytest.mark.timeout(600)
def test_the_chart_tests_itself_by_training_a_job(muster: Installation) -> None:
    output = muster.helm("test", RELEASE, "--namespace", NAMESPACE, "--logs", "--timeout", "280s")
    assert "Succeeded" in output

    def leftovers() -> list[str]:
        objects = muster.cluster.get("trainingjobs,pods,configmaps", "--namespace", NAMESPACE)["items"]
        names = [f"{each['kind']}/{each['metadata']['name']}" for each in objects]
        return [name for name in names if name.partition("/")[2].startswith(f"{RELEASE}-test")]

    # Kubernetes deletes the pods of the job a moment after the job. The pod of the test stays for its log.
    wait_until(lambda: leftovers() == [f"Pod/{RELEASE}-test"], "only the pod of the test is left", pause=0.5)


def test_the_notes_say_what_to_do_next(muster: Installation) -> None:
    notes = muster.helm("get", "notes", RELEASE, "--namespace", NAMESPACE)
    for command in ("rollout status deployment/muster", "helm test --namespace muster-system muster", "kubectl apply"):
        assert command in notes


def test_the_chart_refuses_a_value_that_it_does_not_know(muster: Installation) -> None:
    with pytest.raises(CommandFailedError, match="imagePullPolicy"):
        muster.helm("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--reuse-values", "--set", "imagePullPolicy=Always")


def test_the_operator_has_no_right_that_it_does_not_use(muster: Installation) -> None:
    account = f"--as=system:serviceaccount:{NAMESPACE}:{RELEASE}"
    refused = (
        ("patch", "pods"),
        ("get", "secrets"),
        ("get", "nodes"),
        ("create", "pods", "--subresource=exec"),
        ("update", "trainingjobs"),
    )
    for what in refused:
        assert not muster.cluster.try_kubectl("auth", "can-i", *what, account, "--all-namespaces"), what
    assert muster.cluster.try_kubectl("auth", "can-i", "create", "pods", account, "--all-namespaces")


@pytest.mark.timeout(900)
def test_an_upgrade_and_a_reinstallation_lose_no_running_job(ground: Ground, restored: Installation, uninterrupted: Uninterrupted) -> None:
    """A container is killed while no operator is there: the next installation finds it, and brings the job back."""
    like = uninterrupted("DDP")
    job = ground.apply(digits("digits", delay=0.45))  # an upgrade and a removal take a minute, and more on a busy machine
    job.wait_for_step(27)
    before = restored.operator_pod()["metadata"]["name"]
    restored.install(values={"operator": {"podAnnotations": {"upgraded": "yes"}}})
    assert restored.operator_pod()["metadata"]["name"] != before
    restored.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    assert job.read()["metadata"]["name"] == "digits"
    step = max(event["step"] for event in job.events("step"))
    job.wait_for_step(step + 5)  # it trains on by itself
    FAULTS["supervisor-killed"].strike(job, "worker-1")
    restored.install()
    check_succeeded(job, like, attempts=2, infrastructure=1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_restricted_to_a_namespace_it_runs_the_jobs_of_that_one_only(
    ground: Ground, grounds: Callable[[str], Ground], restored: Installation, uninterrupted: Uninterrupted
) -> None:
    like = uninterrupted("DDP")
    elsewhere = grounds("elsewhere")
    restored.install(values={"watchNamespaces": [ground.namespace]})
    ignored = elsewhere.apply(digits("ignored", delay=0))
    check_succeeded(ground.apply(digits("digits", delay=0)), like, attempts=1)
    assert ignored.status == {}
    account = f"--as=system:serviceaccount:{NAMESPACE}:{RELEASE}"
    assert not ground.cluster.try_kubectl("auth", "can-i", "list", "pods", account, "--namespace", elsewhere.namespace)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_install_yaml_installs_the_same_without_helm(ground: Ground, restored: Installation, uninterrupted: Uninterrupted) -> None:
    like = uninterrupted("DDP")
    manifest = CHART.parents[1] / "deploy" / "install.yaml"
    restored.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    try:
        restored.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(manifest))
        restored.wait_until_ready()
        check_succeeded(ground.apply(digits("digits", delay=0)), like, attempts=1)
    finally:
        objects = [each for each in yaml.safe_load_all(manifest.read_text()) if each]
        made = [each for each in objects if each["kind"] not in ("CustomResourceDefinition", "Namespace")]
        restored.cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(made), timeout=120)
