"""What the chart's roles allow, and how its pods are confined, as a real API server sees it."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import yaml

from tests.chart.chart_variants import CHART, VARIANTS, Manifest, Render

JOBS = {
    ("muster.dev", "trainingjobs"): {"get", "list", "watch", "delete"},
    ("muster.dev", "trainingjobs/status"): {"update", "patch"},
    ("muster.dev", "trainingjobs/finalizers"): {"update"},
    ("", "pods"): {"get", "list", "watch", "create", "delete"},
    ("", "services"): {"get", "list", "watch", "create", "delete"},
    ("", "persistentvolumeclaims"): {"get"},
    ("networking.k8s.io", "networkpolicies"): {"get", "list", "watch", "create", "delete"},
    ("", "events"): {"create", "patch"},
    ("scheduling.k8s.io", "podgroups"): {"get", "create", "update", "delete"},
}
TOKENS = {("authentication.k8s.io", "tokenreviews"): {"create"}, ("authorization.k8s.io", "subjectaccessreviews"): {"create"}}
PRESETS = {("muster.dev", "trainingpresets"): {"get", "list", "watch"}}
DEFINITIONS = {
    ("muster.dev", "trainingpresets"): {"get", "list", "watch", "patch"},
    ("apiextensions.k8s.io", "customresourcedefinitions"): {"get"},
    ("apiextensions.k8s.io", "customresourcedefinitions/status"): {"patch"},
}
NODES = {("", "nodes"): {"list", "watch"}}
LEADER = {
    ("coordination.k8s.io", "leases"): {"create", "get", "update", "patch"},
    ("discovery.k8s.io", "endpointslices"): {"create", "get", "update", "patch", "delete"},
    ("", "secrets"): {"get", "update"},
}
OPERATOR = "system:serviceaccount:muster-system:muster"
Rights = dict[tuple[str, str], set[str]]


def granted(manifests: list[Manifest], account: str = "muster") -> dict[str | None, Rights]:
    """What an account may do, by namespace; None: everywhere."""
    roles = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each["rules"] for each in manifests if "rules" in each
    }
    rights: dict[str | None, Rights] = {}
    for binding in (each for each in manifests if "roleRef" in each and each["subjects"][0]["name"] == account):
        namespace = binding["metadata"].get("namespace")
        for rule in roles[(binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"])]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    rights.setdefault(namespace, {}).setdefault((group, resource), set()).update(rule["verbs"])
    return rights


def test_the_operator_may_do_what_it_needs_and_nothing_else(render: Render) -> None:
    assert granted(render()) == {None: {**JOBS, **TOKENS, **DEFINITIONS, **NODES}, "muster-system": LEADER}


@pytest.mark.parametrize("off", ["nodeNotices", "capacity"])
def test_an_operator_that_reads_notices_or_capacity_classes_may_read_nodes(render: Render, off: str) -> None:
    assert granted(render({off: {"enabled": False}})) == {None: {**JOBS, **TOKENS, **DEFINITIONS, **NODES}, "muster-system": LEADER}


def test_an_operator_may_read_node_claims_only_if_the_values_say_so(render: Render) -> None:
    rights = granted(render({"nodeNotices": {"nodeClaims": True}}))
    assert rights[None] == {**JOBS, **TOKENS, **DEFINITIONS, **NODES, ("karpenter.sh", "nodeclaims"): {"list", "watch"}}


def test_an_operator_that_reads_neither_has_no_right_to_nodes(render: Render) -> None:
    neither = {"nodeNotices": {"enabled": False}, "capacity": {"enabled": False}}
    assert granted(render(neither)) == {None: {**JOBS, **TOKENS, **DEFINITIONS}, "muster-system": LEADER}


def test_kueue_adds_the_rights_to_workloads_where_jobs_are_and_to_what_admission_names(render: Render) -> None:
    workloads = {
        ("kueue.x-k8s.io", "workloads"): {"get", "list", "watch", "create", "update", "delete"},
        ("kueue.x-k8s.io", "workloads/status"): {"update"},
        ("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads"): {"get"},
    }
    everywhere = {("kueue.x-k8s.io", "resourceflavors"): {"get"}, ("scheduling.k8s.io", "priorityclasses"): {"get"}}
    rights = granted(render({"queueing": {"kueue": {"enabled": True}}, "watchNamespaces": ["team-a"]}))
    assert rights["team-a"] == {**JOBS, **workloads}
    assert rights[None] == {**TOKENS, **PRESETS, **NODES, **everywhere}


def test_an_operator_of_some_namespaces_has_no_rights_on_jobs_and_pods_in_others(render: Render) -> None:
    assert granted(render(VARIANTS["a team"])) == {
        None: {**TOKENS, **PRESETS, **NODES},
        "team-a": JOBS,
        "team-b": JOBS,
        "muster-system": LEADER,
    }


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_no_role_has_a_wildcard_touches_secrets_of_others_or_changes_pods(render: Render, values: Manifest) -> None:
    rules = [rule for each in render(values) for rule in each.get("rules", ())]
    for rule in (rule for rule in rules if "nonResourceURLs" not in rule):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "pods/exec" not in rule["resources"]
        assert "nodes" not in rule["resources"] or rule["verbs"] == ["list", "watch"]
        assert "secrets" not in rule["resources"] or rule["resourceNames"] == ["muster-coordination"]
        assert "pods" not in rule["resources"] or not {"patch", "update"} & set(rule["verbs"])


def test_only_the_role_for_readers_of_metrics_names_a_url_and_nobody_is_bound_to_it(render: Render) -> None:
    manifests = render()
    [reader] = [each for each in manifests if any("nonResourceURLs" in rule for rule in each.get("rules") or ())]
    assert (reader["metadata"]["name"], reader["rules"]) == ("muster-metrics-reader", [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])
    assert not any(each.get("roleRef", {}).get("name") == reader["metadata"]["name"] for each in manifests)


def test_every_user_may_read_presets_and_do_nothing_else_unless_the_values_say_no(render: Render) -> None:
    def readers(manifests: list[Manifest]) -> list[str]:
        [binding] = [each for each in manifests if each["kind"] == "ClusterRoleBinding" and each["metadata"]["name"] == "muster-presets"]
        return [each["name"] for each in binding["subjects"]]

    assert readers(render()) == ["muster", "system:authenticated"]
    assert readers(render({"rbac": {"readPresets": False}})) == ["muster"]
    [role] = [each for each in render() if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "muster-presets"]
    assert role["rules"] == [{"apiGroups": ["muster.dev"], "resources": ["trainingpresets"], "verbs": ["get", "list", "watch"]}]


def test_the_test_hook_may_touch_its_own_job_only(render: Render) -> None:
    rights = granted(render(), "muster-test")
    assert rights == {"muster-system": {("muster.dev", "trainingjobs"): {"create", "get", "delete"}}}
    [role] = [each for each in render() if each["kind"] == "Role" and each["metadata"]["name"] == "muster-test"]
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, ["muster-test"]]


def pods(manifests: list[Manifest]) -> list[Manifest]:
    templates = [{"metadata": {"name": "template"}, **each["spec"]["template"]} for each in manifests if each["kind"] == "Deployment"]
    return templates + [each for each in manifests if each["kind"] == "Pod"]


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_pods_are_not_root_and_cannot_write_their_root_file_system(render: Render, values: Manifest) -> None:
    for pod in pods(render(values)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == 1000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert container["resources"]["limits"]["memory"]


def in_namespace(pod: Manifest, namespace: str) -> Manifest:
    metadata = {"name": pod["metadata"]["name"], "namespace": namespace, "labels": pod["metadata"].get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


@pytest.fixture(scope="module")
def installed(kubectl: Any, render: Render) -> Any:
    """kubectl on a server where the chart is applied, in a namespace with pod security's strictest level."""
    for namespace in ("muster-system", "team-a", "team-b"):
        assert kubectl("create", "namespace", namespace).returncode == 0
    kubectl("label", "namespace", "muster-system", "pod-security.kubernetes.io/enforce=restricted")
    done = kubectl("apply", "--server-side", objects=render())
    assert done.returncode == 0, done.stderr
    kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/trainingjobs.muster.dev")
    return kubectl


@pytest.mark.parametrize("name", VARIANTS)
def test_an_api_server_accepts_every_object(installed: Any, render: Render, name: str) -> None:
    objects = [each for each in render(VARIANTS[name]) if each["kind"] not in ("ServiceMonitor", "PrometheusRule", "Pod")]
    done = installed("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict", objects=objects)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_its_pods_are_admitted_where_pod_security_is_restricted(installed: Any, render: Render) -> None:
    for pod in pods(render()):
        pod["spec"].pop("priorityClassName", None)
        pod["metadata"]["name"] = "tried"  # a template has none, and the test's own is there already
        done = installed("create", "--dry-run=server", "--validate=strict", objects=[in_namespace(pod, "muster-system")])
        assert done.returncode == 0, done.stderr


def test_install_yaml_is_applied_by_plain_kubectl_too(installed: Any) -> None:
    done = installed("apply", "--dry-run=server", "-f", str(CHART.parents[1] / "deploy" / "install.yaml"))
    assert done.returncode == 0, done.stderr


CAN = [
    ("create pods -n team-a", True),
    ("update trainingjobs.muster.dev --subresource=status -n team-a", True),
    ("create tokenreviews.authentication.k8s.io", True),
    ("update leases.coordination.k8s.io/muster -n muster-system", True),
    ("update endpointslices.discovery.k8s.io/muster-coordination -n muster-system", True),
    ("patch pods -n team-a", False),
    ("create pods --subresource=exec -n team-a", False),
    ("update trainingjobs.muster.dev -n team-a", False),
    ("get secrets -n muster-system", False),
    ("update leases.coordination.k8s.io/other -n muster-system", False),
    ("update endpointslices.discovery.k8s.io/muster-coordination -n team-a", False),
    ("list nodes", True),
    ("get nodes", False),
    ("patch nodes", False),
]


@pytest.mark.parametrize(("question", "answer"), CAN, ids=[question for question, _ in CAN])
def test_the_api_server_lets_the_operator(installed: Any, question: str, answer: bool) -> None:
    done = installed("auth", "can-i", *question.split(), f"--as={OPERATOR}")
    assert done.stdout.split()[:1] == (["yes"] if answer else ["no"]), done.stderr


def test_the_job_of_helm_test_and_of_the_notes_is_accepted(installed: Any) -> None:
    job = runpy.run_path(str(CHART / "files" / "train.py"))["job_of"]("hook", "MultiWorkerMirrored", 2)
    assert installed("create", "--dry-run=server", "--validate=strict", "-n", "team-a", objects=[job]).returncode == 0
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    text = notes.partition("<<'JOB'\n")[2].partition("     JOB\n")[0]
    done = installed("create", "--dry-run=server", "--validate=strict", "-n", "team-a", objects=[yaml.safe_load(text)])
    assert done.returncode == 0, done.stderr


def test_the_web_page_has_no_rights_and_no_token(render: Render) -> None:
    manifests = render({"ui": {"enabled": True}})
    assert granted(manifests, "muster-ui") == {}
    [pod] = [
        each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment" and each["metadata"]["name"] == "muster-ui"
    ]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("muster-ui", False)
    assert not [volume for volume in pod["volumes"] if "projected" in volume or "secret" in volume]
