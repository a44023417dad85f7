"""Causes that keep pods from getting a node. The texts are those of kube-scheduler 1.30 to 1.37 and the volume controllers.

A message of the scheduler that lists several reasons is divided first (see `scheduler_message`).
"""

from __future__ import annotations

from muster.explain.cause import Cause, Kind, rows
from muster.explain.evidence import Source

_DEVICE = r"Insufficient (?P<resource>[\w.-]+/[\w.-]*\w)"
_TAINT = r"untolerated taint \{(?!node-role)"

SCHEDULING: tuple[Cause, ...] = rows(
    Kind.SCHEDULING,
    [Source.SCHEDULING, Source.CONDITION, Source.CLAIM, Source.STARTING, Source.STATE],
    (
        "ClaimMissing",
        r"persistentvolumeclaim \"(?P<name>[^\"]+)\" not found|ClaimNotFound: there is no claim (?P<other>\S+)",
        "the PersistentVolumeClaim {name}{other} does not exist in this namespace",
        "create it as ReadWriteMany, or correct the name in checkpoint.storage or roles.*.template",
    ),
    (
        "StorageClassMissing",
        r"storageclass\S* \"(?P<name>[^\"]+)\" not found",
        "the claim {subject} names the storage class {name}, which does not exist",
        "use one of kubectl get storageclasses, and create the claim again",
    ),
    (
        "NoDefaultStorageClass",
        r"no persistent volumes available for this claim and no storage class is set",
        "the claim {subject} names no storage class, there is no default one, and no volume fits it",
        "name one of kubectl get storageclasses in the claim, or create a volume for it",
    ),
    (
        "ProvisioningFailed",
        r"^ProvisioningFailed: (?P<what>.*)",
        "the volume of claim {subject} cannot be made: {what}",
        "see kubectl describe pvc {subject}, and the logs of the storage driver",
    ),
    (
        "ClaimLost",
        r"^ClaimLost: (?P<name>\S+)|bound to non-existent pv",
        "the volume of the claim {name} is gone",
        "restore the volume, or create the claim again and start over without its data",
    ),
    (
        "ClaimUnbound",
        r"unbound immediate PersistentVolumeClaims|^ClaimPending: (?P<name>\S+)|waiting for a volume"
        r"|didn't find available persistent volumes|did not have enough free storage",
        "the claim {name} has no volume yet",
        "see kubectl describe pvc: the storage driver may be down, or no volume fits size, class and access mode",
    ),
    (
        "VolumeElsewhere",
        r"volume node affinity conflict|PersistentVolume's node affinity|no available volume zone|plugin\S* \[Volume",
        "the volume can be used only in a zone or on a node that has no room for the pods",
        "use a ReadWriteMany claim, a volume in the right zone, or a nodeSelector in roles.*.template",
    ),
    (
        "VolumeInUse",
        r"Multi-Attach error for volume|ReadWriteOncePod access mode|had no available disk",
        "the volume is attached to another node or pod, and its claim is not ReadWriteMany",
        "use a ReadWriteMany claim, keep the pods on one node with a podAffinity, or end the other pod",
    ),
    (
        "VolumeCount",
        r"exceed max volume count",
        "the nodes cannot attach more volumes",
        "use fewer volumes for each pod, or add nodes",
    ),
) + rows(
    Kind.SCHEDULING,
    [Source.SCHEDULING, Source.STATE],
    (
        "GangDiffers",
        r"all pods in a single pod group should have the same (?P<what>\.spec\.schedulerName|priority|preemption policy)",
        "the pods and their PodGroup do not have the same {what}, so the scheduler places none of them",
        "give all roles the same in roles.*.template, and name the priority class in scheduling.priorityClassName; "
        "if the job does that, an admission webhook or policy of the cluster changes its pods",
    ),
    (
        "GangReasonHidden",  # a fault of Kubernetes 1.37: no pod of the PodGroup got as far as the plugin DynamicResources
        r"PodGroupPostFilter plugins: not found",
        "the scheduler tried no node for any pod, and hides the reason: the cluster has no nodes, "
        "or a PersistentVolumeClaim of the pods is missing or has no volume",
        "see kubectl get nodes, and kubectl describe pvc for the claims in roles.*.template and checkpoint.storage",
    ),
    (
        "GangPreempts",
        r"pod ?group preemption: (?:found a placement|ongoing preemption)",
        "pods of lower priority give way to the job",
        "wait: they may save until their grace period is over",
    ),
    (
        "QueueMissing",
        r"(?P<what>LocalQueue|ClusterQueue) (?P<name>\S+) doesn't exist",
        "the job waits in a queue, and there is no {what} {name}",
        "create it, or name another queue in scheduling.queue: kubectl get localqueues shows those of the namespace",
    ),
    (
        "QueueStopped",
        r"(?P<what>LocalQueue|ClusterQueue) (?P<name>\S+) is (?:inactive|stopped)",
        "{what} {name} admits no jobs now",
        "ask the owner of the queue: kubectl describe shows its stopPolicy, and flavors and admission checks that it lacks",
    ),
    (
        "QuotaNeverFits",
        r"insufficient quota for (?P<what>\S+) in flavor \S+, .*> maximum capacity",
        "the job asks for more {what} than the whole quota of its queue",
        "ask for less in roles.*.resources or for fewer replicas, or name another queue in scheduling.queue",
    ),
    (
        "QuotaUsed",
        r"insufficient unused quota for (?P<what>\S+) in flavor",
        "other jobs use the quota of {what} that the job needs",
        "wait until they end, or ask for fewer replicas; a job of higher priority may preempt them if the queue allows it",
    ),
    (
        "PodsNotReady",
        r"Exceeded the PodsReady timeout",
        "Kueue has evicted the job, because not all of its pods ran within the time of waitForPodsReady",
        "use muster explain when the job is admitted again, to see why its pods do not run; Kueue's configuration has the time",
    ),
    (
        "QueueWaits",
        r"^SchedulingGated|scheduling is blocked due to non-empty scheduling gates",
        "the pods wait for a queue or another controller: they have scheduling gates",
        "see the queue (kubectl get workloads for Kueue), or the controller that has set the gate",
    ),
    (
        "SchedulerAbsent",
        "no scheduler has looked at the pods: {message}",
        "start that scheduler, or leave schedulerName out of roles.*.template",
    ),
    (
        "NoNodes",
        r"no nodes available to schedule pods",
        "the cluster has no nodes",
        "add nodes, or wait for the autoscaler",
    ),
    (
        "NodesNotReady",
        r"untolerated taint \{node\.kubernetes\.io/(?:not-ready|unreachable|network-unavailable)",
        "nodes that the pods need are not ready",
        "see kubectl get nodes and kubectl describe node; the pods start when the nodes are back",
    ),
    (
        "NodesUnderPressure",
        r"untolerated taint \{node\.kubernetes\.io/(?P<what>disk|memory|pid)-pressure",
        "nodes that the pods need have {what} pressure and accept no pods",
        "free {what} on them, or add nodes",
    ),
    (
        "NeverFits",
        "no node is large enough: {message}",
        "ask for less in roles.*.resources, with more replicas instead, or add larger nodes",
    ),
    (
        "DevicesTainted",
        rf"{_TAINT}.{{0,300}}{_DEVICE}|{_DEVICE.replace('resource', 'other')}.{{0,300}}{_TAINT}",
        "the nodes with {resource}{other} are tainted or in use, and the pods do not tolerate the taint",
        "add the toleration in roles.*.template: kubectl describe node shows the taint",
    ),
    (
        "Tainted",
        r"untolerated taint(?:\(s\)| \{(?!node-role\.kubernetes\.io/(?:control-plane|master))(?P<taint>[^}]*)\}?)",
        "the nodes are tainted ({taint}), and the pods do not tolerate it",
        "add the toleration in roles.*.template: kubectl describe node shows the taint; or remove the taint from nodes of the job",
    ),
    (
        "DevicesTaken",
        _DEVICE,
        "not enough {resource} is free",
        "wait for other jobs to end, ask for fewer replicas, or make the job elastic so that it starts with fewer; "
        "if no node offers {resource}, install its device plugin; if nodes with it are tainted, add the toleration in roles.*.template",
    ),
    (
        "MemoryTaken",
        r"Insufficient memory",
        "no node has enough free memory for a pod",
        "ask for less memory in roles.*.resources, wait, or add nodes",
    ),
    (
        "CpuTaken",
        r"Insufficient cpu",
        "no node has enough free CPU for a pod",
        "ask for less CPU in roles.*.resources, wait, or add nodes",
    ),
    (
        "DiskTaken",
        r"Insufficient ephemeral-storage",
        "no node has enough free ephemeral storage for a pod",
        "ask for less ephemeral-storage in roles.*.resources, or add nodes with larger disks",
    ),
    (
        "ResourceTaken",
        r"Insufficient (?P<resource>hugepages-\S+?|[\w.-]*\w)\b",
        "not enough {resource} is free",
        "ask for less of it in roles.*.resources, wait, or add nodes",
    ),
    (
        "TooManyPods",
        r"Too many pods",
        "the nodes run as many pods as they may",
        "end other pods, add nodes, or raise maxPods of the kubelets",
    ),
    (
        "NodeSelector",
        r"didn't match (?:Pod's node affinity/selector|scheduler-enforced node affinity)|plugin\S* \[NodeAffinity",
        "no free node has the labels that the pods ask for",
        "correct nodeSelector or nodeAffinity in roles.*.template (for TPUs: options.tpu; for classes of nodes: scheduling.capacity), or "
        "label nodes: kubectl get nodes --show-labels",
    ),
    (
        "AntiAffinity",
        r"didn't match pod anti-affinity rules|didn't satisfy existing pods anti-affinity",
        "the pods may not share nodes with other pods (anti-affinity), and no further node is free",
        "make podAntiAffinity in roles.*.template a preference, or add nodes",
    ),
    (
        "Affinity",
        r"didn't match pod affinity rules",
        "the pods must be near other pods (affinity) that are not there, or whose nodes are full",
        "make podAffinity in roles.*.template a preference",
    ),
    (
        "TopologySpread",
        r"topology spread constraints",
        "the pods cannot be spread as topologySpreadConstraints asks",
        "set whenUnsatisfiable: ScheduleAnyway in roles.*.template, or add nodes in the other zones",
    ),
    (
        "HostPorts",
        r"didn't have free ports",
        "the host ports that the pods ask for are in use",
        "remove hostPort or hostNetwork from roles.*.template, or use other ports",
    ),
    (
        "DeviceClaim",
        r"resource ?claim|cannot allocate all claims|device class \S+ does not exist|cannot fit resource|device binding",
        "the devices of a ResourceClaim cannot be allocated: {message}",
        "see kubectl get resourceclaims and resourceslices; the driver may be missing",
    ),
    (
        "Cordoned",
        r"node\(s\) were unschedulable|untolerated taint \{node\.kubernetes\.io/unschedulable",
        "nodes that the pods could use are cordoned",
        "kubectl uncordon them when their maintenance is over",
    ),
    (
        "ControlPlaneOnly",
        r"untolerated taint \{node-role",
        "only control-plane nodes are left, and these take no pods",
        "add worker nodes",
    ),
)

WAITING: tuple[Cause, ...] = rows(
    Kind.WAITING,
    [Source.SCHEDULING, Source.STATE],
    (
        "InQueue",
        "the job waits in {message}",
        "see the jobs before it: kubectl get tj shows position and queue of each; scheduling.priorityClassName decides the order",
    ),
    (
        "InManagerQueue",
        "the job waits in its queue before MultiKueue copies it to another cluster: {message}",
        "see kubectl describe workload {subject}, and the ClusterQueue of the queue with its admission checks",
    ),
    (
        "WorkersWait",
        "the job has quota here, and no other cluster has admitted a copy of it yet: {message}",
        "see kubectl get multikueueclusters for those that are connected, and kubectl describe workload {subject} in each of them",
    ),
    (
        "TakenBack",
        "the copy of the job in another cluster ends: {message}",
        "wait: the copy saves, and the job waits in its queue again",
    ),
    (
        "GangWaits",
        r"pod ?group|gang|minMember of group|minCount \(",
        "the scheduler starts all pods together or none: {message}",
        "wait until enough of the cluster is free, or ask for fewer replicas; see the PodGroup of the job",
    ),
    (
        "Unschedulable",
        r"^(?:Unschedulable|FailedScheduling): (?P<what>.*)|: Unschedulable: (?P<more>.*)",
        "the scheduler has no node for a pod: {what}{more}",
        "see kubectl describe pod",
    ),
)
