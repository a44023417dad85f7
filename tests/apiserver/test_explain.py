"""Causes injected on a real API server with the operator at work: `muster explain` names each of them first.

The refusals are the API server's own. What a scheduler or kubelet would write, this test writes, in their words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from muster.client.connection import Target, connected
from muster.client.snapshot import snapshot_of
from muster.explain.explain import explain
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet, now
from tests.support.api_server.operators import operating
from tests.support.waiting import wait_until

Step = Callable[["Place", Object], None]
SECONDS = 240.0


class Place:
    """The namespace of the jobs, with a kubelet."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.jobs, self.kubelet = Jobs(cluster.admin, namespace), Kubelet(cluster.admin)

    def claim_without_volume(self, name: str, reason: str, message: str) -> None:
        """A claim, and an Event of the volume controller about it."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        path = f"/api/v1/namespaces/{self.jobs.namespace}/persistentvolumeclaims"
        made = self.jobs.api.create(path, {"metadata": {"name": name}, "spec": spec})
        self.event({**made, "kind": "PersistentVolumeClaim"}, reason, message)

    def event(self, obj: Object, reason: str, message: str) -> None:
        """An Event of the kubelet about a pod, or of a controller about another object."""
        metadata = obj["metadata"]
        about = {"apiVersion": "v1", "kind": obj.get("kind", "Pod")}
        about |= {field: metadata[field] for field in ("name", "namespace", "uid")}
        body = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": about,
            "type": "Warning",
            "reason": reason,
            "message": message,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        self.jobs.api.create(f"/api/v1/namespaces/{metadata['namespace']}/events", body)


@dataclass(frozen=True)
class Injection:
    """A fault: the job's spec, and what happens to its pod."""

    spec: Object = field(default_factory=dict)
    step: Step | None = None


def unscheduled(message: str, reason: str = "Unschedulable") -> Injection:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastTransitionTime": now()}
    return Injection(step=lambda place, pod: place.kubelet.set_status(pod, {"conditions": [condition]}))


def waiting(reason: str, message: str) -> Injection:
    """A container that does not start."""

    def step(place: Place, pod: Object) -> None:
        place.kubelet.bind(pod)
        state = {"waiting": {"reason": reason, "message": message}}
        status = {"image": "trainer", "imageID": "", "restartCount": 0, "name": "trainer", "ready": False, "started": False, "state": state}
        place.kubelet.set_status(pod, {"phase": "Pending", "containerStatuses": [status]})

    return Injection(step=step)


def event(reason: str, message: str) -> Injection:
    """A pod with a node, whose containers wait, and about which the kubelet says something."""

    def step(place: Place, pod: Object) -> None:
        place.kubelet.bind(pod)
        place.event(pod, reason, message)

    return Injection(step=step)


def ended(code: int, message: str = "", reason: str = "") -> Injection:
    """A pod that runs and ends, of a job that may not restart."""

    def step(place: Place, pod: Object) -> None:
        place.kubelet.run(pod)
        place.kubelet.end(pod, code, message=message, reason=reason)

    return Injection(spec={"recovery": {"application": {"limit": 0}, "infrastructure": {"limit": 0}}}, step=step)


def taken_away(**status: Any) -> Injection:
    def step(place: Place, pod: Object) -> None:
        place.kubelet.run(pod)
        place.kubelet.set_status(pod, status)

    return Injection(spec={"recovery": {"preemption": {"limit": 0}}}, step=step)


def disrupted(reason: str) -> Injection:
    def step(place: Place, pod: Object) -> None:
        place.kubelet.run(pod)
        place.kubelet.disrupt(pod, reason)

    return Injection(spec={"recovery": {"preemption": {"limit": 0}, "infrastructure": {"limit": 0}}}, step=step)


def rejected(reason: str, message: str) -> Injection:
    """A pod that the kubelet of its node does not admit, of a job that may not restart."""

    def step(place: Place, pod: Object) -> None:
        place.kubelet.bind(pod)
        place.kubelet.set_status(pod, {"phase": "Failed", "reason": reason, "message": message})

    limits = {name: {"limit": 0} for name in ("preemption", "infrastructure", "application")}
    return Injection(spec={"recovery": limits}, step=step)


def pods_with(**spec: Any) -> Injection:
    return Injection(spec={"roles": {"worker": {"template": {"spec": spec}}}})


def claim(name: str, reason: str, message: str) -> Injection:
    """A claim of the job without a volume, and what the volume controller writes about it."""

    def step(place: Place, pod: Object) -> None:
        place.claim_without_volume(name, reason, message)

    return Injection(spec={"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": name}}}}, step=step)


NODES = "0/4 nodes are available: "
END = ". preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
NO_TRAINER = [{"name": "trainer", "$patch": "delete"}]

INJECTIONS: dict[str, Injection] = {
    "Suspended": Injection(spec={"suspend": True}),
    "ManagedByOther": Injection(spec={"managedBy": "example.com/other"}),
    "Invalid": pods_with(containers=NO_TRAINER),
    "PodSecurity": pods_with(hostNetwork=True),
    "LimitRange": Injection(spec={"roles": {"worker": {"resources": {"limits": {"cpu": "64"}}}}}),
    "ServiceAccountMissing": pods_with(serviceAccountName="absent"),
    "PriorityClassMissing": Injection(spec={"scheduling": {"priorityClassName": "absent"}}),
    "RuntimeClassMissing": pods_with(runtimeClassName="absent"),
    "ClaimMissing": Injection(spec={"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "absent"}}}}),
    "ClaimUnbound": unscheduled(f"{NODES}pod has unbound immediate PersistentVolumeClaims{END}"),
    "VolumeElsewhere": unscheduled(f"{NODES}4 node(s) had volume node affinity conflict{END}"),
    "QueueWaits": unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"),
    "NoNodes": unscheduled("no nodes available to schedule pods"),
    "GangWaits": unscheduled(
        "pre-filter pod digits-worker-0 cannot find enough sibling pods, current pods number: 1, minMember of group: 2"
    ),
    "GangDiffers": unscheduled(
        "all pods in a single pod group should have the same priority as the pod group's priority, got 1000 and 0", "SchedulerError"
    ),
    "GangReasonHidden": unscheduled('error in "DynamicResources" PodGroupPostFilter plugins: not found', "SchedulerError"),
    "GangPreempts": unscheduled("minCount (2) cannot be satisfied: 1 scheduled, 0 remaining, pod group preemption: ongoing preemption"),
    "VolumeCount": unscheduled(f"{NODES}4 node(s) exceed max volume count{END}"),
    "NodesUnderPressure": unscheduled(f"{NODES}4 node(s) had untolerated taint {{node.kubernetes.io/disk-pressure: }}{END}"),
    "DiskTaken": unscheduled(f"{NODES}4 Insufficient ephemeral-storage{END}"),
    "ResourceTaken": unscheduled(f"{NODES}4 Insufficient hugepages-2Mi{END}"),
    "AntiAffinity": unscheduled(f"{NODES}4 node(s) didn't match pod anti-affinity rules{END}"),
    "Affinity": unscheduled(f"{NODES}4 node(s) didn't match pod affinity rules{END}"),
    "TopologySpread": unscheduled(f"{NODES}4 node(s) didn't match pod topology spread constraints{END}"),
    "HostPorts": unscheduled(f"{NODES}4 node(s) didn't have free ports for the requested pod ports{END}"),
    "DeviceClaim": unscheduled(f"{NODES}4 cannot allocate all claims. still not schedulable{END}"),
    "ControlPlaneOnly": unscheduled(f"{NODES}4 node(s) had untolerated taint {{node-role.kubernetes.io/control-plane: }}{END}"),
    "StorageClassMissing": claim("fast", "ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found'),
    "NoDefaultStorageClass": claim("plain", "FailedBinding", "no persistent volumes available for this claim and no storage class is set"),
    "ProvisioningFailed": claim("large", "ProvisioningFailed", "failed to provision volume: rpc error: quota of the project exceeded"),
    "NodesNotReady": unscheduled(f"{NODES}4 node(s) had untolerated taint {{node.kubernetes.io/unreachable: }}{END}"),
    "DevicesTaken": unscheduled(f"{NODES}4 Insufficient nvidia.com/gpu{END}"),
    "DevicesTainted": unscheduled(f"{NODES}2 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {{gpu: yes}}{END}"),
    "MemoryTaken": unscheduled(f"{NODES}4 Insufficient memory{END}"),
    "CpuTaken": unscheduled(f"{NODES}1 node(s) had untolerated taint {{node-role.kubernetes.io/control-plane: }}, 3 Insufficient cpu{END}"),
    "TooManyPods": unscheduled(f"{NODES}4 Too many pods{END}"),
    "Tainted": unscheduled(f"{NODES}4 node(s) had untolerated taint {{team: other}}{END}"),
    "NodeSelector": unscheduled(f"{NODES}4 node(s) didn't match Pod's node affinity/selector{END}"),
    "Cordoned": unscheduled(f"{NODES}4 node(s) were unschedulable{END}"),
    "ImageNotFound": waiting("ErrImagePull", 'failed to pull and unpack image "own:1": own:1: not found'),
    "ImageForbidden": waiting("ErrImagePull", 'failed to pull and unpack image "own:1": failed to authorize: 401 Unauthorized'),
    "RegistryUnreachable": waiting("ErrImagePull", 'failed to pull image: Head "https://r": dial tcp: lookup r: no such host'),
    "ImageRateLimit": waiting("ErrImagePull", "failed to pull image: toomanyrequests: You have reached your pull rate limit"),
    "ImageNameInvalid": waiting("InvalidImageName", 'Failed to apply default image tag "a b": invalid reference format'),
    "ImageNeverPulled": waiting("ErrImageNeverPull", 'Container image "own:1" is not present with pull policy of Never'),
    "ImagePlatform": waiting("ErrImagePull", 'failed to pull and unpack image "own:1": no match for platform in manifest: not found'),
    "ImageDiskFull": waiting("ErrImagePull", "failed to extract layer: write /usr/lib/x: no space left on device"),
    "KeyMissing": waiting("CreateContainerConfigError", "couldn't find key token in Secret default/s3"),
    "SecretMissing": waiting("CreateContainerConfigError", 'secret "s3" not found'),
    "RunsAsRoot": waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
    "CommandMissing": waiting("RunContainerError", 'runc create failed: exec: "trane": executable file not found in $PATH'),
    "ConfigMapMissing": event("FailedMount", 'MountVolume.SetUp failed for volume "code" : configmap "code" not found'),
    "MountFailed": event("FailedMount", 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32: Connection timed out'),
    "VolumeInUse": event("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other-worker-0'),
    "NetworkSetupFailed": event("FailedCreatePodSandBox", 'plugin type="calico" failed (add): no IP addresses available'),
    "DeviceAllocation": rejected("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present, which is unexpected"),
    "MemoryFull": ended(137, reason="OOMKilled"),
    "DriverTooOld": ended(1, "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."),
    "DeviceUnsupported": ended(1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    "DeviceAbsent": ended(1, "RuntimeError: No CUDA GPUs are available"),
    "DeviceBroken": ended(1, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
    "StorageCredentials": ended(1, "botocore.exceptions.ClientError: An error occurred (InvalidAccessKeyId) when calling PutObject"),
    "BucketMissing": ended(1, "botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling ListObjectsV2"),
    "StorageReadOnly": ended(1, "OSError: [Errno 30] Read-only file system: '/checkpoints/step-1'"),
    "PermissionDenied": ended(1, "PermissionError: [Errno 13] Permission denied: '/data/cache'"),
    "NetworkBroken": ended(1, "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms"),
    "IllegalInstruction": ended(132),
    "Aborted": ended(134),
    "DeviceMemoryFull": ended(1, "Traceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    "SharedMemoryFull": ended(1, "RuntimeError: DataLoader worker (pid 40) is killed by signal: Bus error."),
    "ModuleMissing": ended(1, "ModuleNotFoundError: No module named 'einops'"),
    "FileMissing": ended(1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'"),
    "StorageFull": ended(1, "OSError: [Errno 28] No space left on device: '/tmp/x'"),
    "AddressUnknown": ended(1, "socket.gaierror: [Errno -2] Name or service not known"),
    "ProgramFailed": ended(1, "ValueError: shapes do not match"),
    "ImageProgramMissing": ended(127),
    "Segfault": ended(139),
    "Killed": ended(137),
    "NodeDiskFull": taken_away(phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage."),
    "NodeMemoryFull": taken_away(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
    "NodeLost": taken_away(phase="Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
    "PreemptedByScheduler": disrupted("PreemptionByScheduler"),
    "NodeTainted": disrupted("DeletionByTaintManager"),
    "DeviceTainted": disrupted("DeletionByDeviceTaintManager"),
    "Drained": disrupted("EvictionByEvictionAPI"),
    "DeadlinePassed": Injection(spec={"activeDeadlineSeconds": 1}),
    "StartupDeadline": Injection(spec={"startupDeadlineSeconds": 1}),
}


MESSAGES = {
    "PodSecurity": "The API server refuses to create more: the namespace enforces the pod security level baseline:latest",
    "ServiceAccountMissing": "/absent does not exist",
    "DevicesTaken": "(0 of 1 run): Unschedulable: not enough nvidia.com/gpu is free",
    "ClaimUnbound": "Unschedulable: the claim has no volume yet",
    "Tainted": "Unschedulable: the nodes are tainted (team: other), and the pods do not tolerate it",
    "QueueWaits": "SchedulingGated: the pods wait for a queue or another controller",
    "ImageNotFound": "ImagePullBackOff: the image does not exist: own:1",
    "SecretMissing": "CreateContainerConfigError: the Secret s3 does not exist",
}
"""What `status.message` says of these causes, in short."""


@dataclass(frozen=True)
class Explained:
    """The jobs, while the operator is still at work, and the causes that are named of each."""

    jobs: Jobs
    causes: dict[str, list[str]]


@pytest.fixture(scope="module")
def explained(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explained]:
    """The causes that are named of each job, once the right one is first or the time is over."""
    namespace = cluster.namespace("explain")
    place = Place(cluster, namespace)
    cluster.admin.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}})
    limits = {"metadata": {"name": "limits"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "32"}}]}}
    cluster.admin.create(f"/api/v1/namespaces/{namespace}/limitranges", limits)
    with operating(cluster, tmp_path_factory.mktemp("operator")):
        for cause, injection in INJECTIONS.items():
            roles = {"worker": {"replicas": 1, **injection.spec.get("roles", {}).get("worker", {})}}
            spec = {**injection.spec, "roles": roles}
            place.jobs.submit(job(cause.lower(), **spec))
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda entry: _inject(place, *entry), INJECTIONS.items()))
        yield Explained(place.jobs, asyncio.run(_explained(cluster, namespace)))
    cluster.empty(namespace)


def _inject(place: Place, cause: str, injection: Injection) -> None:
    if injection.step is None:
        return
    wait_until(lambda: place.jobs.pods(cause.lower()), f"the pod of {cause.lower()}")
    [pod] = place.jobs.pods(cause.lower())
    injection.step(place, pod)


async def _explained(cluster: Cluster, namespace: str) -> dict[str, list[str]]:
    deadline = asyncio.get_running_loop().time() + SECONDS
    causes: dict[str, list[str]] = {}
    async with connected(Target(namespace, kubeconfig=str(cluster.kubeconfig))) as connection:
        while asyncio.get_running_loop().time() < deadline:
            wrong = [cause for cause in INJECTIONS if causes.get(cause, [])[:1] != [cause]]
            for cause in wrong:
                explanation = explain(await snapshot_of(connection, cause.lower()))
                causes[cause] = [finding.cause.id for finding in explanation.findings]
            if not wrong:
                break
    return causes


@pytest.mark.parametrize("cause", INJECTIONS)
def test_the_first_cause_is_the_injected_one(explained: Explained, cause: str) -> None:
    assert explained.causes[cause][:1] == [cause], explained.causes[cause]


@pytest.mark.parametrize("cause", MESSAGES)
def test_the_message_of_the_status_has_the_short_cause(explained: Explained, cause: str) -> None:
    wait_until(lambda: MESSAGES[cause] in explained.jobs.status(cause.lower()).get("message", ""), f"the message names {cause}")


def test_a_quota_that_is_used_up_is_named(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    namespace = cluster.namespace("quota")
    jobs = Jobs(cluster.admin, namespace)
    folder = f"/api/v1/namespaces/{namespace}/resourcequotas"
    hard = {"pods": "0"}
    made = jobs.api.create(folder, {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}})
    jobs.api.request("PUT", f"{folder}/team/status", {**made, "status": {"hard": hard, "used": {"pods": "0"}}})
    with operating(cluster, tmp_path_factory.mktemp("operator")):
        jobs.submit(job("digits", workers=1))
        wait_until(lambda: "the quota team of the namespace is used up" in jobs.status("digits").get("message", ""), "the pods are refused")

        async def first() -> tuple[str, str]:
            async with connected(Target(namespace, kubeconfig=str(cluster.kubeconfig))) as connection:
                finding = explain(await snapshot_of(connection, "digits")).findings[0]
                return finding.cause.id, finding.sentence

        sentence = "the quota team of the namespace is used up: a pod needs pods=1; pods=0 of pods=0 are in use"
        assert asyncio.run(first()) == ("QuotaExceeded", sentence)
    cluster.empty(namespace)
