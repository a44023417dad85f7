"""What an installation allows its jobs and their authors, on a real API server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import local_cluster
from tests.support.api_server.api import JOBS, Api, ApiError, Object
from tests.support.api_server.cluster import CHART, RELEASE_NAMESPACE, Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import PODS, Nodes
from tests.support.api_server.operators import operating
from tests.support.texts import absent
from tests.support.waiting import wait_until


def templated(name: str, **spec: Any) -> Object:
    return job(name, roles={"worker": {"replicas": 1, "template": {"spec": spec}}})


def refused(jobs: Jobs, name: str) -> str:
    """The message of condition Valid once it is False."""
    return str(condition(wait_until(lambda: _invalid(jobs.status(name)), f"{name} is refused"), "Valid")["message"])


def _invalid(status: Object) -> Object | None:
    return status if condition(status, "Valid").get("status") == "False" else None


def test_a_job_that_violates_the_policy_is_invalid_and_gets_no_pods(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    policy = {
        "serviceAccounts": ["train"],
        "priorityClasses": ["low"],
        "volumes": ["emptyDir"],
        "templates": "Restricted",
        "maxReplicasPerJob": 2,
    }
    with operating(cluster, tmp_path / "operator", jobPolicy=policy):
        jobs.submit(templated("account", serviceAccountName="powerful"))
        jobs.submit(templated("secret", volumes=[{"name": "db", "secret": {"secretName": "db-password"}}]))
        jobs.submit(templated("host", hostNetwork=True, hostPID=True))
        jobs.submit(job("urgent", scheduling={"priorityClassName": "vip"}))
        jobs.submit(job("large", workers=3))
        assert absent(refused(jobs, "account"), "serviceAccountName: ", "train") == []
        assert absent(refused(jobs, "secret"), "volumes[0].secret: ", "emptyDir") == []
        assert "hostNetwork: " in refused(jobs, "host")
        assert absent(refused(jobs, "urgent"), "spec.scheduling.priorityClassName: ", "low") == []
        assert "this installation allows 2" in refused(jobs, "large")
        jobs.submit(templated("honest", nodeSelector={"pool": "gpu"}, volumes=[{"name": "scratch", "emptyDir": {}}]))
        jobs.reaches("honest", "Running")
        assert {pod["metadata"]["labels"]["muster.dev/job-name"] for pod in nodes.seen.values()} == {"honest"}


def test_a_job_beyond_the_namespaces_limit_starts_when_another_ends(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    with operating(cluster, tmp_path / "operator", jobPolicy={"maxJobsPerNamespace": 1}):
        jobs.submit(job("first", workers=1))
        jobs.reaches("first", "Running")
        jobs.submit(job("second", workers=1))
        assert "this installation allows 1" in refused(jobs, "second")
        nodes.ends = lambda pod: 0 if pod["metadata"]["labels"]["muster.dev/job-name"] == "first" else None
        [pod] = jobs.pods("first")
        jobs.api.patch(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}", {"metadata": {"annotations": {"end": "now"}}})
        jobs.reaches("second", "Running")
        assert jobs.status("first")["phase"] == "Succeeded"


def test_a_stricter_policy_does_not_end_a_running_job(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    with operating(cluster, tmp_path / "before"):
        jobs.submit(job("digits", workers=2))
        jobs.reaches("digits", "Running")
    with operating(cluster, tmp_path / "after", jobPolicy={"maxReplicasPerJob": 1}):
        jobs.submit(job("other", workers=1))
        jobs.reaches("other", "Running")  # so the operator watches pods
        [pod, _] = jobs.pods("digits")
        jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}")
        wait_until(lambda: jobs.status("digits")["restarts"]["total"] == 1 and len(jobs.pods("digits")) == 2, "the job recovers")
        assert condition(jobs.reaches("digits", "Running"), "Valid")["status"] == "True"


RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}"
JOBS_ONLY = {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"], "verbs": ["create", "get", "update", "patch"]}
TRY = "?dryRun=All"


def author(cluster: Cluster, namespace: str, *rules: Object) -> Api:
    """Somebody with these rights in the namespace, and no others."""
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}}
    cluster.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "tenant"}, "rules": list(rules)}
    cluster.admin.create(f"{RBAC.format(namespace)}/roles", role)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
    }
    cluster.admin.create(f"{RBAC.format(namespace)}/rolebindings", binding)
    tenant = token_of(cluster, namespace, "tenant")
    wait_until(lambda: answer(tenant, JOBS.format(namespace), job("probe")) == "", "the tenant's rights hold")
    return tenant


def token_of(cluster: Cluster, namespace: str, account: str) -> Api:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = cluster.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
    return Api(cluster.admin.server, made["status"]["token"], cluster.admin.authority)


def answer(caller: Api, folder: str, body: Object) -> str:
    """What the API server says to a creation that is only tried; empty: it would be done."""
    try:
        caller.create(folder + TRY, body)
    except ApiError as error:
        return str(error)
    return ""


def secretly(name: str) -> Object:
    return job(name, checkpoint={"storage": {"uri": "s3://bucket", "secretRef": {"name": "s3"}}})


FROM_SECRET = {"valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}
BEYOND: dict[str, tuple[Object, str]] = {
    "a service account": (templated("x", serviceAccountName="powerful"), "create tokens of service account powerful"),
    "a service account by its old name": (templated("x", serviceAccount="powerful"), "service account powerful"),
    "a service account in a role of another package's strategy": (
        job("x", strategy="Relay", roles={"launcher": {"template": {"spec": {"serviceAccountName": "powerful"}}}}),
        "service account powerful",
    ),
    "a Secret in a role of another package's strategy": (
        job(
            "x", strategy="Relay", roles={"launcher": {"template": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "db"}}]}}}}
        ),
        "spec.roles: a template",
    ),
    "a Secret for pulling images": (templated("x", imagePullSecrets=[{"name": "registry"}]), "get Secret registry"),
    "a token": (templated("x", automountServiceAccountToken=True), "spec.roles: a template"),
    "a Secret for checkpoints": (secretly("x"), "get Secret s3"),
    "a Secret for an input": (
        job("x", inputs=[{"name": "base", "source": "hf://org/tiny", "secretRef": {"name": "hub"}}]),
        "spec.inputs: ",
    ),
    "a Secret as a volume": (templated("x", volumes=[{"name": "v", "secret": {"secretName": "db"}}]), "spec.roles: a template"),
    "a Secret in a variable": (
        templated("x", containers=[{"name": "trainer", "env": [{"name": "A", **FROM_SECRET}]}]),
        "spec.roles: a template",
    ),
    "a Secret in a variable of all roles": (
        job("x", trainer={"task": "digits", "env": [{"name": "A", **FROM_SECRET}]}),
        "spec.trainer.env: a variable from a Secret",
    ),
    "a Secret as an environment": (
        templated("x", initContainers=[{"name": "i", "image": "i", "envFrom": [{"secretRef": {"name": "db"}}]}]),
        "spec.roles: a template",
    ),
    "a priority class": (job("x", scheduling={"priorityClassName": "vip"}), "priorityClassName"),
    "a folder of the node": (templated("x", volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "spec.roles: a template"),
    "the node's network": (templated("x", hostNetwork=True), "spec.roles: a template"),
    "a node": (templated("x", nodeName="control-plane-1"), "spec.roles: a template"),
    "every taint": (templated("x", tolerations=[{"operator": "Exists"}]), "spec.roles: a template"),
    "privileges": (templated("x", containers=[{"name": "trainer", "securityContext": {"privileged": True}}]), "spec.roles: a template"),
    "no security context": (templated("x", **{"$patch": "replace"}), "spec.roles: a template"),
}


REFERENCE: Object = {"secretRef": {"name": "db"}}
OTHER_TYPES: dict[str, Object] = {
    "envFrom as a mapping": templated("x", containers=[{"name": "trainer", "envFrom": REFERENCE}]),
    "envFrom as text": templated("x", containers=[{"name": "trainer", "envFrom": "secretRef"}]),
    "envFrom as a list of lists": templated("x", containers=[{"name": "trainer", "envFrom": [[REFERENCE]]}]),
    "envFrom as a list of text": templated("x", initContainers=[{"name": "i", "image": "i", "envFrom": ["secretRef"]}]),
    "valueFrom as a list": templated(
        "x", containers=[{"name": "trainer", "env": [{"name": "A", "valueFrom": [FROM_SECRET["valueFrom"]]}]}]
    ),
    "valueFrom as text": templated("x", containers=[{"name": "trainer", "env": [{"name": "A", "valueFrom": "secretKeyRef"}]}]),
    "volumes as a mapping": templated("x", volumes={"name": "v", "secret": {"secretName": "db"}}),
    "volumes as a list of lists": templated("x", volumes=[[{"name": "v", "secret": {"secretName": "db"}}]]),
    "imagePullSecrets as a mapping": templated("x", imagePullSecrets={"name": "registry"}),
    "imagePullSecrets as a list of text": templated("x", imagePullSecrets=["registry"]),
    "a service account as a list": templated("x", serviceAccountName=["powerful"]),
    "ports as a mapping": templated("x", containers=[{"name": "trainer", "ports": {"hostPort": 1}}]),
    "env as a mapping": templated("x", containers=[{"name": "trainer", "env": {"A": FROM_SECRET}}]),
    "containers as a mapping": templated("x", containers={"trainer": {"envFrom": [REFERENCE]}}),
    "a spec as a list": job("x", roles={"worker": {"replicas": 1, "template": {"spec": [{"hostNetwork": True}]}}}),
}


def test_parts_of_another_type_pass_no_policy(cluster: Cluster, namespace: str) -> None:
    tenant = author(cluster, namespace, JOBS_ONLY)
    folder = JOBS.format(namespace)
    wait_until(lambda: answer(tenant, folder, secretly("x")), "the policy is in force")
    assert [what for what, attack in OTHER_TYPES.items() if not answer(tenant, folder, attack).startswith("4")] == []


def test_a_job_gives_its_author_no_access_that_the_author_does_not_have(cluster: Cluster, namespace: str) -> None:
    tenant = author(cluster, namespace, JOBS_ONLY)
    folder = JOBS.format(namespace)
    wait_until(lambda: answer(tenant, folder, secretly("x")), "the policy is in force")
    for what, (attack, words) in BEYOND.items():
        text = answer(tenant, folder, attack)
        assert text.startswith("403"), (what, text)
        assert words in text, (what, text)
        assert f"system:serviceaccount:{namespace}:tenant" in text
    template = {"nodeSelector": {"pool": "gpu"}, "volumes": [{"name": "scratch", "emptyDir": {}}]}
    for honest in (job("x"), templated("x", **template), job("x", checkpoint={"storage": {"persistentVolumeClaim": {"claimName": "c"}}})):
        assert answer(tenant, folder, honest) == ""


def test_an_author_with_a_right_may_use_it_in_a_job(cluster: Cluster, namespace: str) -> None:
    secret = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s3", "registry"], "verbs": ["get"]}
    account = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["train"], "verbs": ["create"]}
    tenant = author(cluster, namespace, JOBS_ONLY, secret, account)
    folder = JOBS.format(namespace)
    wait_until(lambda: answer(tenant, folder, templated("x", serviceAccountName="other")), "the policy is in force")
    assert answer(tenant, folder, secretly("x")) == ""
    assert answer(tenant, folder, templated("x", serviceAccountName="train")) == ""
    assert answer(tenant, folder, templated("x", imagePullSecrets=[{"name": "registry"}])) == ""
    several = answer(tenant, folder, templated("x", imagePullSecrets=[{"name": "registry"}, {"name": "other"}]))
    assert "the only pull secret" in several


def test_an_author_with_the_right_to_create_pods_may_use_every_field(cluster: Cluster, namespace: str) -> None:
    tenant = author(cluster, namespace, JOBS_ONLY, {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]})
    assert {what: text for what, (attack, _) in BEYOND.items() if (text := answer(tenant, JOBS.format(namespace), attack))} == {}


def test_a_user_with_the_right_to_patch_a_job_can_suspend_it_but_not_read_its_secret(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    tenant = author(cluster, namespace, JOBS_ONLY)
    wait_until(lambda: answer(tenant, JOBS.format(namespace), secretly("x")), "the policy is in force")
    jobs.submit(secretly("theirs"))
    tenant.patch(jobs.path("theirs"), {"spec": {"suspend": True}})
    tenant.patch(jobs.path("theirs"), {"metadata": {"labels": {"team": "ml"}}})
    with pytest.raises(ApiError, match="get Secret s3"):
        tenant.patch(jobs.path("theirs"), {"spec": {"trainer": {"task": None, "command": ["env"]}}})
    tenant.patch(jobs.path("theirs"), {"spec": {"suspend": False}})


# the operator's own account


OWNER = {"apiVersion": "muster.dev/v1beta1", "kind": "TrainingJob", "name": "x", "uid": "1", "controller": True}
LABELS = {"muster.dev/job-name": "x", "muster.dev/job-uid": "1"}
POD_LABELS = {**LABELS, "app.kubernetes.io/name": "muster-training"}


def child(kind: str, spec: Object, *, api: str = "v1", owners: tuple[Object, ...] = (OWNER,), labels: Any = LABELS) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x", "labels": labels, "ownerReferences": list(owners)}, "spec": spec}


def pod(**spec: Any) -> Object:
    return child("Pod", {"containers": [{"name": "trainer", "image": "x"}], **spec}, labels=POD_LABELS)


def event(about: Object, **fields: Any) -> Object:
    involved = {"namespace": None, "name": "x", "uid": "1", **about}
    event = {"reason": "Started", "type": "Normal", "message": "x", "source": {"component": "muster"}, "involvedObject": involved}
    named = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "x.1"}}
    return {**named, **event, "reportingComponent": "muster.dev/operator", "reportingInstance": "muster", **fields}


def endpoints(name: str, service: str) -> Object:
    metadata = {"name": name, "labels": {"kubernetes.io/service-name": service}}
    named = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4"}
    return {**named, "endpoints": [{"addresses": ["10.9.9.9"]}], "ports": [{"name": "coordination", "port": 8443}]}


def lease(name: str) -> Object:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {"holderIdentity": "x"}}


def service(**spec: Any) -> Object:
    return child("Service", {"ports": [{"port": 80}], **spec})


def policy(selector: Object) -> Object:
    return child("NetworkPolicy", {"podSelector": selector}, api="networking.k8s.io/v1")


SERVICES = "/api/v1/namespaces/{}/services"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
EVENTS = "/api/v1/namespaces/{}/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
BARE = {"containers": [{"name": "a", "image": "a"}]}
SECRETS: dict[str, Object] = {
    "secret": {"secret": {"secretName": "muster-coordination"}},
    "projected": {"projected": {"sources": [{"secret": {"name": "muster-coordination"}}]}},
    "csi": {"csi": {"driver": "x", "nodePublishSecretRef": {"name": "muster-coordination"}}},
    "cephfs": {"cephfs": {"monitors": ["x"], "secretRef": {"name": "muster-coordination"}}},
    "rbd": {"rbd": {"monitors": ["x"], "image": "x", "secretRef": {"name": "muster-coordination"}}},
    "flexVolume": {"flexVolume": {"driver": "a/x", "secretRef": {"name": "muster-coordination"}}},
    "azureFile": {"azureFile": {"shareName": "x", "secretName": "muster-coordination"}},
    "iscsi": {"iscsi": {"targetPortal": "x:1", "iqn": "iqn.2001-04.x:x", "lun": 0, "secretRef": {"name": "muster-coordination"}}},
    "hostPath": {"hostPath": {"path": "/"}},
}
"""Volumes that contain a Secret, or have it sent to somebody, or to the node."""
FROM_OWN_SECRET = {"secretKeyRef": {"name": "muster-coordination", "key": "tls.key"}}
DEPLOYED = {**OWNER, "kind": "ReplicaSet", "apiVersion": "apps/v1"}
FENCED: dict[str, tuple[str, str, Object, str]] = {
    "a pod of no job": (PODS, "", child("Pod", BARE, owners=()), "TrainingJob as its controller"),
    "a pod of a Deployment": (PODS, "", child("Pod", BARE, owners=(DEPLOYED,)), "TrainingJob as its controller"),
    "a pod without a label": (PODS, "", child("Pod", BARE, labels={}), "label muster.dev/job-name"),
    "a pod of the cluster": (PODS, "kube-system", pod(), "namespaces of the cluster"),
    "a pod with the operator's account": (PODS, RELEASE_NAMESPACE, pod(serviceAccountName="muster"), "neither a service account nor"),
    **{
        f"a pod with a {kind} volume beside the operator": (
            PODS,
            RELEASE_NAMESPACE,
            pod(volumes=[{"name": "v", **source}]),
            "neither a service account nor",
        )
        for kind, source in SECRETS.items()
    },
    "a pod with the operator's Secret in a variable": (
        PODS,
        RELEASE_NAMESPACE,
        pod(initContainers=[{"name": "i", "image": "i", "env": [{"name": "A", "valueFrom": FROM_OWN_SECRET}]}]),
        "neither a service account nor",
    ),
    "a pod with the operator's Secret as its environment": (
        PODS,
        RELEASE_NAMESPACE,
        pod(containers=[{"name": "c", "image": "c", "envFrom": [{"secretRef": {"name": "muster-coordination"}}]}]),
        "neither a service account nor",
    ),
    "a pod that sends the operator's Secret to a registry": (
        PODS,
        RELEASE_NAMESPACE,
        pod(imagePullSecrets=[{"name": "muster-coordination"}]),
        "only the pull secrets of jobDefaults",
    ),
    "a pod that a Service of the operator selects": (
        PODS,
        RELEASE_NAMESPACE,
        child("Pod", BARE, labels={**LABELS, "app.kubernetes.io/name": "muster", "app.kubernetes.io/component": "ui"}),
        "no Service of Muster selects them",
    ),
    "the addresses of another Service": (SLICES, RELEASE_NAMESPACE, endpoints("x", "muster-ui"), "EndpointSlice of its own"),
    "other addresses of its own Service": (
        SLICES,
        RELEASE_NAMESPACE,
        endpoints("x", "muster-coordination"),
        "EndpointSlice of its own",
    ),
    "another Service with its own name": (
        SLICES,
        RELEASE_NAMESPACE,
        endpoints("muster-coordination", "muster-ui"),
        "EndpointSlice of its own",
    ),
    "the lease of another program": (LEASES, RELEASE_NAMESPACE, lease("x"), "its own Lease"),
    "an Event of the cluster": (
        EVENTS,
        "kube-system",
        event({"kind": "TrainingJob", "apiVersion": "muster.dev/v1beta1"}),
        "cluster itself",
    ),
    "an Event of a Deployment": (EVENTS, "", event({"kind": "Deployment", "apiVersion": "apps/v1"}), "Events are about"),
    "an Event of another's job": (EVENTS, "", event({"kind": "TrainingJob", "apiVersion": "kubeflow.org/v1"}), "Events are about"),
    "an Event in the name of the kubelet": (
        EVENTS,
        "",
        event({"kind": "TrainingJob", "apiVersion": "muster.dev/v1beta1"}, reportingComponent="kubelet"),
        "Events are about",
    ),
    "a service with an address": (SERVICES, "", service(), "headless"),
    "a service with somebody's address": (SERVICES, "", service(clusterIP="None", externalIPs=["10.0.0.1"]), "headless"),
    "a service that leads away": (SERVICES, "", service(type="ExternalName", externalName="example.com"), "headless"),
    "a policy for pods of others": (POLICIES, "", policy({}), "pods of a job"),
}


@pytest.fixture
def hijacker(cluster: Cluster, namespace: str) -> Api:
    """Somebody with the token of the operator's service account."""
    for place in (RELEASE_NAMESPACE, "kube-system"):  # no controller makes them here
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        cluster.admin.apply(f"/api/v1/namespaces/{place}/serviceaccounts/default", account)
    caller = token_of(cluster, RELEASE_NAMESPACE, "muster")
    wait_until(lambda: answer(caller, PODS.format(namespace), child("Pod", BARE, owners=())), "the policy is in force")
    return caller


def test_the_account_of_the_operator_creates_only_objects_of_jobs(cluster: Cluster, namespace: str, hijacker: Api) -> None:
    for what, (folder, where, attack, words) in FENCED.items():
        attack = _in(where or namespace, attack)
        text = answer(hijacker, folder.format(where or namespace), attack)
        assert words in text, (what, text)
        assert words not in answer(cluster.admin, folder.format(where or namespace), attack), "others are not concerned"
    for where in (namespace, RELEASE_NAMESPACE):
        assert answer(hijacker, PODS.format(where), pod()) == ""
        assert answer(hijacker, SERVICES.format(where), service(clusterIP="None")) == ""
        assert answer(hijacker, POLICIES.format(where), policy({"matchLabels": LABELS})) == ""
        for honest in (
            event({"kind": "TrainingJob", "apiVersion": "muster.dev/v1beta1"}),
            event({"kind": "Pod", "apiVersion": "v1"}, reason="Unreadable"),
        ):
            assert answer(hijacker, EVENTS.format(where), _in(where, honest)) == ""
    plain = [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "code"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"audience": "muster", "path": "token"}}]}},
    ]
    variable = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    trainer = {"name": "trainer", "image": "x", "env": [variable, {"name": "B", "value": "b"}]}
    assert answer(hijacker, PODS.format(RELEASE_NAMESPACE), pod(volumes=plain, containers=[trainer])) == ""
    for path, own in ((SLICES, endpoints("muster-coordination", "muster-coordination")), (LEASES, lease("muster"))):
        result = answer(hijacker, path.format(RELEASE_NAMESPACE), own)
        assert not result or "already exists" in result, "policies come first"


def _in(namespace: str, manifest: Object) -> Object:
    """An Event is about an object of its own namespace."""
    if manifest["kind"] != "Event":
        return manifest
    return {**manifest, "involvedObject": {**manifest["involvedObject"], "namespace": namespace}}


def test_the_account_of_the_operator_deletes_no_foreign_objects(cluster: Cluster, namespace: str, hijacker: Api, jobs: Jobs) -> None:
    victim = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim"}, "spec": BARE}
    cluster.admin.create(PODS.format(namespace), victim)
    cluster.admin.create(SERVICES.format(namespace), {**service(), "metadata": {"name": "victim"}})
    jobs.submit(job("running"))
    jobs.submit(job("kept", ttlSecondsAfterFinished=60))
    for path in (f"{PODS.format(namespace)}/victim", f"{SERVICES.format(namespace)}/victim", jobs.path("running"), jobs.path("kept")):
        with pytest.raises(ApiError, match=r"label muster.dev/job-name|jobs that have ended"):
            hijacker.request("DELETE", path)
        cluster.admin.get(path)
    cluster.admin.patch(jobs.path("kept") + "/status", {"status": {"phase": "Succeeded"}})
    hijacker.request("DELETE", jobs.path("kept"))


STRICT = "fullnameOverride=strict,serviceAccount.name=muster,jobPolicy.templates=Restricted,jobPolicy.serviceAccounts={train}"


@pytest.fixture
def strict(cluster: Cluster) -> Iterator[None]:
    """The admission policies of an installation with a strict jobPolicy, beside those that are there."""
    helm = str(local_cluster.Programs(local_cluster.Places.default()).path("helm"))
    command = [helm, "template", "strict", str(CHART), "-n", RELEASE_NAMESPACE, "--kube-version=1.34", "--set", STRICT]
    command += ["--show-only", "templates/admissionpolicies.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    folders = {
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }
    api = "/apis/admissionregistration.k8s.io/v1"
    made = {f"{api}/{folders[each['kind']]}/{each['metadata']['name']}": each for each in yaml.safe_load_all(text)}
    for path, manifest in made.items():
        cluster.admin.apply(path, manifest)
    yield
    for path in made:
        cluster.admin.delete(path)


@pytest.mark.usefixtures("strict")
def test_a_strict_job_policy_also_limits_the_account_of_the_operator(cluster: Cluster, namespace: str, hijacker: Api) -> None:
    folder = PODS.format(namespace)
    cluster.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "powerful"}})
    cluster.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "train"}})
    wait_until(lambda: answer(hijacker, folder, pod(hostNetwork=True)), "the policy is in force")
    host = [{"name": "v", "hostPath": {"path": "/"}}]
    for attack in (pod(hostNetwork=True), pod(hostPID=True), pod(volumes=host)):
        assert "what belongs to their node" in answer(hijacker, folder, attack)
    assert "jobPolicy.serviceAccounts" in answer(hijacker, folder, pod(serviceAccountName="powerful"))
    for honest in (pod(), pod(serviceAccountName="train")):
        assert answer(hijacker, folder, honest) == ""
