"""Each cause is recognised in real messages. The messages are those of Kubernetes 1.34, containerd, Muster and frameworks."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from muster.api.status import LONGEST_TEXT
from muster.explain.cause import Kind
from muster.explain.causes import CAUSES
from muster.explain.evidence import Evidence, Source, evidence_in
from muster.explain.explain import first_match
from muster.explain.snapshot import Snapshot

R, S, B, C, A = Source.REFUSED, Source.SCHEDULING, Source.STARTING, Source.CONTAINER, Source.ATTEMPT
E, D, N, T, L = Source.END, Source.CONDITION, Source.NOTICE, Source.STATE, Source.CLAIM
POD = 'pods "digits-worker-0" is forbidden: '
NODES = "0/5 nodes are available: "
END = ". preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
PULL = 'failed to pull and unpack image "registry.example.com/own:1": '

GROUP = "pod group is unschedulable, minCount (4) cannot be satisfied: 2 scheduled, 1 remaining, "
SAME = "all pods in a single pod group should have the same "
TABLE: list[tuple[str, Source, str, str]] = [
    ("BeingDeleted", T, "BeingDeleted", ": finalizers keep it: example.com/theirs"),
    ("ManagedByOther", T, "ManagedByOther", "example.com/other"),
    ("WorkloadAbsent", T, "WorkloadAbsent", "scheduling.queue is empty"),
    ("CopyRefused", T, "CopyRefused", 'No multikueue adapter found for owner kind "muster.dev/v1beta1, Kind=TrainingJob"'),
    ("InManagerQueue", S, "InManagerQueue", "Kueue has not processed its Workload yet"),
    ("WorkersWait", T, "WorkersWait", "east, west"),
    ("TakenBack", T, "TakenBack", "The LocalQueue is stopped"),
    ("InWorkerCluster", T, "InWorkerCluster", "east"),
    ("DefinitionOld", T, "DefinitionOld", "spec.preset"),
    ("WorldOnOneNode", D, "WorldOnOneNode", "all 2 replicas of the world run on node-1"),
    ("OperatorDown", T, "OperatorDown", "it has never had a status, after 40 s"),
    ("OperatorDown", T, "OperatorDown", "no operator has updated this job for 40 s, although worker-1 is gone"),
    ("Suspended", T, "Suspended", ""),
    ("Invalid", D, "Invalid", "spec.roles.worker.template: has no container named trainer"),
    ("QuotaExceeded", R, "ReplicasRefused", POD + "exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2"),
    (
        "QuotaNeedsValues",
        R,
        "ReplicasRefused",
        POD + "failed quota: team: must specify limits.cpu for: trainer; limits.memory for: trainer",
    ),
    (
        "PodSecurity",
        R,
        "ReplicasRefused",
        POD + 'violates PodSecurity "restricted:latest": hostPath volumes (volume "data")',
    ),
    ("LimitRange", R, "ReplicasRefused", POD + "maximum cpu usage per Container is 2, but limit is 4"),
    ("LimitRange", R, "ReplicasRefused", POD + "minimum memory usage per Container is 1Gi, but request is 1Mi"),
    ("LimitRange", R, "ReplicasRefused", POD + "cpu max limit to request ratio per Container is 1, but provided ratio is 2.000000"),
    (
        "ServiceAccountMissing",
        R,
        "ReplicasRefused",
        POD + 'error looking up service account team/trainer: serviceaccount "trainer" not found',
    ),
    ("PriorityClassMissing", R, "ReplicasRefused", POD + "no PriorityClass with name high was found"),
    ("RuntimeClassMissing", R, "ReplicasRefused", POD + 'pod rejected: RuntimeClass "nvidia" not found'),
    ("WebhookDenied", R, "ReplicasRefused", 'admission webhook "policy.example.com" denied the request: images must be signed'),
    (
        "PolicyDenied",
        R,
        "ReplicasRefused",
        POD + "ValidatingAdmissionPolicy 'no-latest' with binding 'no-latest' denied request: use a tag",
    ),
    (
        "NamespaceTerminating",
        R,
        "ReplicasRefused",
        POD + "unable to create new content in namespace team because it is being terminated",
    ),
    (
        "OperatorRights",
        R,
        "ReplicasRefused",
        'pods is forbidden: User "system:serviceaccount:muster-system:muster" cannot create resource "pods" in API group ""',
    ),
    ("PodInvalid", R, "ReplicasRefused", 'Pod "digits-worker-0" is invalid: spec.containers[1].image: Required value'),
    ("PodsRefused", R, "ReplicasRefused", "something else"),
    ("ClaimMissing", S, "Unschedulable", NODES + 'persistentvolumeclaim "data" not found' + END),
    ("ClaimMissing", D, "ClaimNotFound", "there is no claim data in this namespace: the pods wait for it, 1800 s at most"),
    ("ClaimMissing", T, "ClaimNotFound", "there is no claim data in this namespace"),
    ("StorageClassMissing", L, "ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found'),
    ("NoDefaultStorageClass", L, "FailedBinding", "no persistent volumes available for this claim and no storage class is set"),
    ("ProvisioningFailed", L, "ProvisioningFailed", "failed to provision volume: rpc error: code = ResourceExhausted desc = quota"),
    ("ClaimLost", T, "ClaimLost", "data"),
    ("ClaimUnbound", S, "Unschedulable", NODES + "pod has unbound immediate PersistentVolumeClaims" + END),
    ("ClaimUnbound", S, "Unschedulable", NODES + "3 node(s) didn't find available persistent volumes to bind" + END),
    ("ClaimUnbound", T, "ClaimPending", "data"),
    ("VolumeElsewhere", S, "Unschedulable", NODES + "5 node(s) had volume node affinity conflict" + END),
    ("VolumeInUse", B, "FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) digits-worker-0'),
    (
        "VolumeInUse",
        S,
        "Unschedulable",
        NODES + "5 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode" + END,
    ),
    ("VolumeCount", S, "Unschedulable", NODES + "5 node(s) exceed max volume count" + END),
    ("GangWaits", S, "Unschedulable", "pod group is not ready, 2 Pending, 4 minAvailable; Pending: 2 Unschedulable"),
    ("GangWaits", S, "Unschedulable", "minCount (4) cannot be satisfied: 2 scheduled, 1 remaining"),
    ("GangWaits", S, "Unschedulable", GROUP + "pod group preemption: No preemption victims found for incoming preemptor"),
    ("GangPreempts", S, "Unschedulable", GROUP + "pod group preemption: found a placement for podgroup, preempting 4 victims"),
    ("GangPreempts", S, "Unschedulable", GROUP + "pod group preemption: ongoing preemption on nominated nodes"),
    ("GangReasonHidden", S, "SchedulerError", 'error in "DynamicResources" PodGroupPostFilter plugins: not found'),
    ("GangDiffers", S, "SchedulerError", SAME + "priority as the pod group's priority, got 1000 and 0"),
    ("GangDiffers", S, "SchedulerError", SAME + '.spec.schedulerName set, got: "a" and "b"'),
    ("GangDiffers", S, "SchedulerError", SAME + "preemption policy, got Never and PreemptLowerPriority"),
    ("QueueMissing", T, "WaitingForQuota", "queue team: Inadmissible: LocalQueue team doesn't exist"),
    ("QueueStopped", T, "WaitingForQuota", "queue team: Inadmissible: ClusterQueue all is inactive"),
    (
        "QuotaNeverFits",
        T,
        "WaitingForQuota",
        "couldn't assign flavors to pod set worker: insufficient quota for cpu in flavor main, request > maximum capacity (9 > 4)",
    ),
    (
        "QuotaNeverFits",  # Kueue 0.17
        T,
        "WaitingForQuota",
        "queue team: Pending: couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in flavor main, "
        "previously considered podsets requests (0) + current podset request (16) > maximum capacity (8)",
    ),
    (
        "QuotaUsed",
        T,
        "WaitingForQuota",
        "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor main, 2 more needed",
    ),
    ("PodsNotReady", T, "WaitingForQuota", "queue team: PodsReadyTimeout: Exceeded the PodsReady timeout default/digits"),
    ("InQueue", T, "InQueue", "queue team at position 3 and 7 in its ClusterQueue, since 40 s"),
    ("QueueWaits", S, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"),
    ("SchedulerAbsent", T, "SchedulerAbsent", "volcano has done nothing for 30 s"),
    ("NoNodes", S, "Unschedulable", "no nodes available to schedule pods"),
    ("NodesNotReady", S, "Unschedulable", NODES + "5 node(s) had untolerated taint {node.kubernetes.io/not-ready: }" + END),
    ("NodesNotReady", S, "Unschedulable", NODES + "1 Insufficient cpu, 4 node(s) had untolerated taint {node.kubernetes.io/unreachable: }"),
    ("NodesUnderPressure", S, "Unschedulable", NODES + "5 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }" + END),
    ("NeverFits", T, "NeverFits", "worker-0 requests 16 of nvidia.com/gpu, and the largest node has 8"),
    (
        "DevicesTainted",
        S,
        "Unschedulable",
        NODES + "2 node(s) had untolerated taint {nvidia.com/gpu: present}, 3 Insufficient nvidia.com/gpu" + END,
    ),
    ("DevicesTainted", S, "Unschedulable", NODES + "3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {gpu: yes}" + END),
    ("DevicesTaken", S, "Unschedulable", NODES + "5 Insufficient nvidia.com/gpu" + END),
    (
        "DevicesTaken",
        S,
        "Unschedulable",
        NODES + "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 4 Insufficient nvidia.com/gpu" + END,
    ),
    ("MemoryTaken", S, "Unschedulable", NODES + "5 Insufficient memory" + END),
    (
        "CpuTaken",
        S,
        "Unschedulable",
        NODES + "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 4 Insufficient cpu" + END,
    ),
    ("DiskTaken", S, "Unschedulable", NODES + "5 Insufficient ephemeral-storage" + END),
    ("ResourceTaken", S, "Unschedulable", NODES + "5 Insufficient hugepages-2Mi" + END),
    ("TooManyPods", S, "Unschedulable", NODES + "5 Too many pods" + END),
    ("Tainted", S, "Unschedulable", NODES + "5 node(s) had untolerated taint {team: other}" + END),
    ("Tainted", S, "Unschedulable", NODES + "5 node(s) had untolerated taint(s)" + END),
    ("NodeSelector", S, "Unschedulable", NODES + "5 node(s) didn't match Pod's node affinity/selector" + END),
    ("AntiAffinity", S, "Unschedulable", NODES + "5 node(s) didn't match pod anti-affinity rules" + END),
    ("Affinity", S, "Unschedulable", NODES + "5 node(s) didn't match pod affinity rules" + END),
    ("TopologySpread", S, "Unschedulable", NODES + "5 node(s) didn't match pod topology spread constraints" + END),
    ("HostPorts", S, "Unschedulable", NODES + "5 node(s) didn't have free ports for the requested pod ports" + END),
    ("DeviceClaim", S, "Unschedulable", NODES + "5 cannot allocate all claims" + END),
    ("Cordoned", S, "Unschedulable", NODES + "5 node(s) were unschedulable" + END),
    ("ControlPlaneOnly", S, "Unschedulable", NODES + "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }" + END),
    ("Unschedulable", S, "Unschedulable", "a plug-in of your own says no"),
    ("ImageNameInvalid", B, "InvalidImageName", 'Failed to apply default image tag "a b": couldn\'t parse image name "a b"'),
    ("ImageNeverPulled", B, "ErrImageNeverPull", 'Container image "own:1" is not present with pull policy of Never'),
    ("ImageRateLimit", B, "ErrImagePull", PULL + "429 Too Many Requests - toomanyrequests: You have reached your pull rate limit"),
    ("ImagePlatform", B, "ErrImagePull", PULL + "no match for platform in manifest: not found"),
    ("ImagePlatform", A, "UserError", "exec /usr/bin/python3: exec format error"),
    ("ImageDiskFull", B, "ErrImagePull", PULL + "failed to copy: write /var/lib/containerd/x: no space left on device"),
    (
        "ImageSecretMissing",
        B,
        "FailedToRetrieveImagePullSecret",
        "Unable to retrieve some image pull secrets (registry); attempting to pull the image may not succeed.",
    ),
    ("ImageForbidden", B, "ErrImagePull", PULL + "failed to authorize: failed to fetch anonymous token: 401 Unauthorized"),
    (
        "ImageForbidden",
        B,
        "ErrImagePull",
        PULL + "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope",
    ),
    ("ImageNotFound", B, "ErrImagePull", PULL + "failed to resolve reference: registry.example.com/own:1: not found"),
    ("ImageNotFound", B, "ImagePullBackOff", 'Back-off pulling image "own:1": ErrImagePull: manifest unknown'),
    ("RegistryUnreachable", B, "ErrImagePull", PULL + 'Head "https://registry.example.com": dial tcp: lookup registry: no such host'),
    ("RegistryUnreachable", B, "ErrImagePull", PULL + "tls: failed to verify certificate: x509: certificate signed by unknown authority"),
    ("ImagePull", B, "ImagePullBackOff", 'Back-off pulling image "own:1"'),
    ("ConfigMapMissing", B, "FailedMount", 'MountVolume.SetUp failed for volume "code" : configmap "code" not found'),
    ("SecretMissing", B, "CreateContainerConfigError", 'secret "s3" not found'),
    ("KeyMissing", B, "CreateContainerConfigError", "couldn't find key TOKEN in Secret team/s3"),
    ("KeyMissing", B, "FailedMount", 'MountVolume.SetUp failed for volume "code" : references non-existent config key: train.py'),
    ("RunsAsRoot", B, "CreateContainerConfigError", "container has runAsNonRoot and image will run as root (pod: ...)"),
    ("CommandMissing", B, "RunContainerError", 'runc create failed: exec: "trane": executable file not found in $PATH'),
    ("CommandMissing", A, "UserError", "python3: can't open file '/code/trane.py': [Errno 2] No such file or directory"),
    ("VolumeAttachFailed", B, "FailedAttachVolume", "AttachVolume.Attach failed for volume pvc-1: rpc error: code = Internal"),
    ("MountFailed", B, "FailedMount", 'MountVolume.SetUp failed for volume "data": mount.nfs: Connection timed out'),
    ("NetworkSetupFailed", B, "FailedCreatePodSandBox", 'plugin type="calico" failed (add): no IPs available'),
    ("DeviceAllocation", C, "UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
    ("NodeFull", C, "OutOfcpu", "Node didn't have enough resource: cpu, requested: 4000, used: 3000, capacity: 6000"),
    ("NodeFull", A, "StartFailed", "Pod was rejected: OutOfnvidia.com/gpu"),
    ("NodeRejected", C, "NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"),
    ("InitContainerFailed", B, "InitContainerFailed", "container fetch-data ended with 1: no space"),
    ("InitContainerFailed", A, "InitContainerFailed", "container fetch-data ended with 1: Error"),
    ("SupervisorNotCopied", B, "SupervisorNotCopied", "container muster-supervisor ended with 1: no space"),
    ("SupervisorNotCopied", A, "SupervisorNotCopied", "container muster-supervisor ended with 1: Error"),
    ("SideCarCrashes", B, "CrashLoopBackOff", "back-off 40s restarting failed container=proxy"),
    ("ContainerConfig", B, "CreateContainerError", "context deadline exceeded"),
    ("ImagePulling", T, "ImagePulling", 'Pulling image "own:1", for 90 s'),
    ("StuckTerminating", T, "StuckTerminating", "its grace period ended 60 s ago, on node-1"),
    ("NodeDiskFull", A, "Evicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi"),
    ("NodeMemoryFull", A, "Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi"),
    ("PreemptedByScheduler", A, "Disrupted", "PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority pod"),
    (
        "PreemptedByScheduler",
        A,
        "Disrupted",
        "PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority podgroup",
    ),
    ("NodeTainted", A, "Disrupted", "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint"),
    ("DeviceTainted", A, "DeviceTainted", "Device Taint manager: deleting due to NoExecute taint (gpu.example.com/node-1/gpu-3)"),
    ("DeviceUnhealthy", A, "DeviceUnhealthy", "unhealthy device of digits-worker-1: nvidia.com/gpu GPU-3; CUDA error: unspecified"),
    ("Drained", A, "Disrupted", "EvictionByEvictionAPI: Eviction API: evicting"),
    ("NodeLost", A, "NodeLost", "digits-worker-1 did not end within its grace period, because its node does not answer"),
    ("NodeLost", A, "Disrupted", "TerminationByKubelet: Pod was terminated in response to imminent node shutdown."),
    ("PodDeleted", A, "PodDeleted", "something other than Muster deleted it"),
    ("PodDeleted", A, "ReplicaLost", "something other than Muster removed it"),
    ("InputNotFound", A, "InputNotFound", "input base: model org/none does not exist, or is private: correct its source"),
    ("InputNotFound", A, "InputNotFound", "input base: model org/tiny has no revision v9; correct what follows @"),
    ("InputForbidden", A, "InputForbidden", "input rows: s3://b/rows: the store refuses access: AccessDenied; correct the Secret"),
    ("InputForbidden", A, "InputForbidden", "input base: the hub refuses access to model org/tiny (403); correct HF_TOKEN"),
    ("InputRefused", A, "InputRefused", "input base: '../x' is not a plain relative path; remove it from the source"),
    ("InputDiskFull", A, "InputDiskFull", "input base: the disk is full: 3.1 GB are missing, and /inputs/.cache has 1.0 GB left"),
    ("InputUnreachable", A, "InputUnavailable", "input base: the hub cannot be reached or does not answer: [Errno 111]"),
    ("InputsFetched", T, "InputsFetched", "3.1 GB of 8.0 GB on the slowest replica, and 2 of 4 replicas have it"),
    ("StorageCredentials", A, "StorageUnavailable", "checkpoint storage s3://bucket: An error occurred (InvalidAccessKeyId): no such key"),
    ("StorageCredentials", A, "StorageUnavailable", "checkpoint storage s3://bucket: Unable to locate credentials"),
    ("BucketMissing", A, "StorageUnavailable", "checkpoint storage s3://bucket: An error occurred (NoSuchBucket)"),
    ("StorageFull", A, "StorageUnavailable", "checkpoint storage /checkpoints: [Errno 28] No space left on device"),
    ("StorageFull", A, "UserError", "OSError: [Errno 28] No space left on device: '/tmp/x'"),
    ("StorageFull", A, "StorageFull", "checkpoint storage /checkpoints: no space is left: free some"),
    ("StorageFull", A, "StorageFull", "checkpoint storage /checkpoints: the quota is used up: free some space"),
    ("StorageReadOnly", A, "StorageReadOnly", "checkpoint storage /checkpoints: the file system is read-only: mount it writable"),
    ("StorageForbidden", A, "StorageForbidden", "checkpoint storage /checkpoints: permission is denied: give the user write access"),
    ("StorageReadOnly", A, "StorageUnavailable", "checkpoint storage /checkpoints: [Errno 30] Read-only file system"),
    ("StorageForbidden", A, "StorageUnavailable", "checkpoint storage /checkpoints: [Errno 13] Permission denied"),
    (
        "StorageUnreachable",
        A,
        "StorageUnavailable",
        'checkpoint storage s3://b: Could not connect to the endpoint URL: "http://minio:9000"',
    ),
    ("CheckpointDamaged", A, "CheckpointDamaged", "step-100: model-0.bin has another checksum"),
    ("DeviceMemoryFull", A, "UserError", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("DeviceMemoryFull", A, "UserError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes"),
    ("MemoryFull", A, "OutOfMemory", "the container ran out of memory: raise resources.limits.memory of its container"),
    ("SharedMemoryFull", A, "UserError", "RuntimeError: DataLoader worker (pid 40) is killed by signal: Bus error."),
    ("DriverTooOld", A, "UserError", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"),
    ("DeviceUnsupported", A, "UserError", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("DeviceAbsent", A, "UserError", "RuntimeError: No CUDA GPUs are available"),
    ("DeviceBroken", A, "UserError", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("LossNotFinite", A, "LossNotFinite", "the loss of step 40 (epoch 1) is nan"),
    ("ModuleMissing", A, "UserError", "ModuleNotFoundError: No module named 'einops'"),
    ("FileMissing", A, "UserError", "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'"),
    ("PermissionDenied", A, "UserError", "PermissionError: [Errno 13] Permission denied: '/data'"),
    ("AddressUnknown", A, "UserError", "socket.gaierror: [Errno -2] Name or service not known"),
    ("NetworkBroken", A, "UserError", "torch.distributed.DistBackendError: NCCL error in: x.cpp, ncclSystemError"),
    ("VersionSkew", A, "UserError", "the report has protocol version 9"),
    ("ConfigurationWrong", A, "BadConfiguration", "spec.trainer.config.epochs: must be at least 1"),
    ("Hang", A, "Hang", "no step for 600 s"),
    ("NotSaved", A, "PreemptedNotSaved", "steps since step 100 are lost"),
    ("Preempted", A, "Preempted", "stopped and saved"),
    ("StartFailed", A, "StartFailed", "its container never started"),
    ("ProgramFailed", A, "UserError", "ValueError: shapes do not match"),
    ("PeerLost", A, "PeerLost", "rank 1 went away"),
    ("ProcessKilled", A, "ProcessKilled", "ended by signal 8"),
    ("DeadlinePassed", E, "ActiveDeadlineExceeded", "the job did not end within 60 s"),
    ("UsageLimit", E, "DeviceHoursLimitReached", "the job has used 2.00 of 2 device-hours (spec.usageLimits.deviceHours)"),
    ("UsageLimit", E, "CostLimitReached", "the job has cost 9.00 of 9 (spec.usageLimits.cost)"),
    ("NoProgress", E, "NoProgress", "5 attempts in a row made no new step. worker-0: x"),
    (
        "BudgetExceeded",
        E,
        "ApplicationLimitExceeded",
        "your code failed 4 times (limit: 3 restarts); worker-0: x",
    ),
    ("Failed", E, "RepeatedError", "the same error twice in a row at the same step: x"),
    ("StartupDeadline", E, "StartupDeadlineExceeded", "the job did not start within 1800 s: it waited for worker-1 (1 of 2 run)"),
    ("NodeNotReady", T, "NodeNotReady", "node-1: Kubelet stopped posting node status."),
    ("ReportsStopped", T, "ReportsStopped", "5 min"),
    ("NoFirstStep", T, "NoFirstStep", "5 min"),
    ("Straggler", D, "SlowRank", "rank 3 (worker-3) takes 2 s per step; the median is 1 s"),
    ("InputStalled", N, "InputStalled", "the training waits for samples 40 % of the time"),
    ("SavesBlock", T, "SavesBlock", "30%"),
    ("TimeLost", T, "TimeLost", "30%"),
    ("EnvironmentsDiffer", N, "EnvironmentsDiffer", "torch 2.6 on rank 0, torch 2.7 on rank 1"),
    ("FewerWorkers", T, "FewerWorkers", "2 of 4"),
    ("ClassHasNoNode", D, "WaitingForClass", "pods of worker wait for nodes of class spot"),
    ("OnOtherClass", D, "FellBack", "no node of class spot for 600 s, so pods of worker may also use on-demand"),
    ("Succeeded", T, "Succeeded", ": step 100 of 100"),
    ("CompletedWithoutReport", T, "CompletedWithoutReport", ""),
    ("Suspending", T, "Suspending", ""),
    ("HeldByLimit", T, "HeldByLimit", "the job has used 2.00 of 2 device-hours (spec.usageLimits.deviceHours)"),
    ("HeldBack", T, "HeldBack", "12:00:00 UTC"),
    ("Running", T, "Running", ": step 3 of 100"),
    ("ContainersStart", T, "ContainersStart", "worker-0"),
    ("Starting", T, "Starting", "waiting for worker-0"),
    ("ResumedTooEarly", D, "StartedOver", "attempt 1 began at step 0, but step 100 was committed"),
    ("GraceTooShort", D, "GraceTooShort", "attempt 0: worker-0 was asked to stop with a grace period of 5 s"),
    ("StorageOneNode", D, "OneNode", "claim data is ReadWriteOnce: all 2 pods must be on one node"),
    ("CheckpointSkipped", N, "CheckpointDamaged", "step-100 does not verify"),
    ("SavesFail", N, "SaveFailed", "checkpoint storage /checkpoints: no space is left"),
    ("RescueFailed", N, "RescueFailed", "could not save its last step"),
    ("LossWarning", N, "LossNotFinite", "the loss is NaN at step 7"),
    ("ProcessesRemain", N, "ProcessesRemain", "2 processes do not end"),
    ("PolicyMayBlock", T, "PolicyMayBlock", "default-deny"),
    ("NodeAvoided", T, "NodeAvoided", "node-1"),
    ("NoStorage", T, "NoStorage", ""),
]


ENDS: list[tuple[str, str, str | int]] = [
    ("SharedMemoryFull", "ProcessKilled", "SIGBUS"),
    ("Segfault", "ProcessKilled", "SIGSEGV"),
    ("IllegalInstruction", "ProcessKilled", "SIGILL"),
    ("Aborted", "ProcessKilled", "SIGABRT"),
    ("Killed", "ProcessKilled", "SIGKILL"),
    ("Killed", "ProcessKilled", "SIGTERM"),
    ("ProcessKilled", "ProcessKilled", "SIGFPE"),
    ("ImageProgramMissing", "UserError", 126),
    ("ImageProgramMissing", "UserError", 127),
    ("ProgramFailed", "UserError", 1),
]


@pytest.mark.parametrize(("cause", "reason", "end"), ENDS)
def test_the_end_of_a_process_matches_its_cause(cause: str, reason: str, end: str | int) -> None:
    record = {"attempt": 0, "class": "Application", "reason": reason, "signal" if isinstance(end, str) else "exitCode": end, "message": "x"}
    [evidence] = evidence_in(Snapshot(job={"metadata": {}, "spec": {}, "status": {"attempts": [record]}}, now=datetime.now(UTC)))
    match = first_match(evidence)
    assert match is not None
    assert match[1].cause.id == cause


def test_a_signal_does_not_hide_a_reason_that_says_more() -> None:
    record = {"attempt": 0, "class": "Preemption", "reason": "PreemptedNotSaved", "signal": "SIGKILL", "message": "x"}
    [evidence] = evidence_in(Snapshot(job={"metadata": {}, "spec": {}, "status": {"attempts": [record]}}, now=datetime.now(UTC)))
    match = first_match(evidence)
    assert match is not None
    assert match[1].cause.id == "NotSaved"


@pytest.mark.parametrize(("cause", "source", "reason", "message"), TABLE, ids=[f"{row[0]}-{number}" for number, row in enumerate(TABLE)])
def test_a_message_matches_its_cause(cause: str, source: Source, reason: str, message: str) -> None:
    match = first_match(Evidence(source, reason, message, "worker-1"))
    assert match is not None
    assert match[1].cause.id == cause
    assert "{" not in match[1].sentence
    assert match[1].sentence


def test_every_cause_has_a_row_in_a_table_above() -> None:
    assert {cause.id for cause in CAUSES} == {row[0] for row in (*TABLE, *ENDS)}


def test_ids_are_unique_and_sentences_use_only_groups_of_the_pattern() -> None:
    assert len({cause.id for cause in CAUSES}) == len(CAUSES)
    for cause in CAUSES:
        used = set(re.findall(r"\{(\w+)\}", cause.sentence + cause.remedy))
        assert used <= {"subject", "message", "logs", *re.compile(cause.pattern).groupindex}, cause.id


def test_causes_are_sorted_by_kind() -> None:
    kinds = list(Kind)
    assert [kinds.index(cause.kind) for cause in CAUSES] == sorted(kinds.index(cause.kind) for cause in CAUSES)


def test_only_the_beginning_of_a_long_text_is_searched() -> None:
    """The time of some patterns grows with the square of the length, and tenants write Events of a megabyte."""
    cause = next(cause for cause in CAUSES if cause.id == "CommandMissing")
    message = "executable file not found in $PATH"
    assert cause.values(Evidence(Source.STARTING, "Failed", f"{' ' * (LONGEST_TEXT - 100)}{message}")) is not None
    assert cause.values(Evidence(Source.STARTING, "Failed", f"{' ' * LONGEST_TEXT}{message}")) is None
