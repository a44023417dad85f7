"""Causes that end an attempt or a job. Messages are those of supervisors, trainers, PyTorch, TensorFlow, JAX and object stores."""

from __future__ import annotations

from muster.explain.cause import Cause, Kind, rows
from muster.explain.evidence import Source

NEVER = r"(?!)"
"""A pattern that no text matches."""

TAKEN_AWAY: tuple[Cause, ...] = rows(
    Kind.FAILED,
    [Source.ATTEMPT, Source.CONTAINER],
    (
        "NodeDiskFull",
        r"^Evicted: .*(?:ephemeral-storage|ephemeral local storage|DiskPressure|emptyDir)",
        "{subject} was evicted, because it or its node ran out of disk",
        "write less to the container's own file system (caches, TensorBoard files), set emptyDir sizes, or request ephemeral-storage in "
        "roles.*.resources",
    ),
    (
        "NodeMemoryFull",
        r"^Evicted: .*memory",
        "{subject} was evicted, because its node ran out of memory",
        "request the memory that the job needs in roles.*.resources, so that the scheduler does not overbook the node",
    ),
    (
        "PreemptedByScheduler",
        r"PreemptionByScheduler|^Preempting",
        "{subject} was preempted by pods of higher priority",
        "the job resumes when there is room; set scheduling.priorityClassName if it must not be preempted",
    ),
    (
        "DeviceTainted",
        r"DeletionByDeviceTaintManager|^DeviceTainted",
        "{subject} was removed, because one of its devices got a taint: {message}",
        "look at the taint: kubectl get devicetaintrules,resourceslices -o yaml; the job resumes on another device",
    ),
    (
        "DeviceUnhealthy",
        "{subject} had an unhealthy device: {message}",
        "look at the device and at the log of its plugin or driver; the job resumes, and its pods avoid the node for an hour",
    ),
    (
        "NodeTainted",
        r"DeletionByTaintManager",
        "{subject} was removed, because its node got a taint that the pod does not tolerate",
        "look at the node: it was probably unreachable or not ready; the job resumes on others",
    ),
    (
        "Drained",
        r"EvictionByEvictionAPI|^Evicted",
        "{subject} was evicted, as when a node is drained: {message}",
        "nothing: the job resumes on another node",
    ),
    (
        "NodeLost",
        r"^NodeLost|DeletionByPodGC|TerminationByKubelet|^(?:NodeShutdown|Shutdown|Terminated)\b",
        "the node of {subject} was lost or shut down: {message}",
        "nothing, if this is rare: the job resumes on another node; otherwise see kubectl describe node",
    ),
    (
        "PodDeleted",
        r"^(?:PodDeleted|ReplicaLost|Disrupted)",
        "the pod of {subject} was deleted: {message}",
        "look for a user or program that deletes pods of this namespace; the job resumes",
    ),
)

STORAGE: tuple[Cause, ...] = rows(
    Kind.FAILED,
    [Source.ATTEMPT],
    (
        "StorageCredentials",
        r"(?:NoCredentials|Unable to locate credentials|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|ExpiredToken|InvalidToken"
        r"|\b403\b|(?<!Storage)Forbidden)",
        "the object storage refuses the credentials: {message}",
        "correct the Secret in checkpoint.storage.secretRef (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and what its user may do",
    ),
    (
        "BucketMissing",
        r"NoSuchBucket|bucket does not exist",
        "the bucket of the checkpoints does not exist: {message}",
        "create it, or correct checkpoint.storage.uri",
    ),
    (
        "StorageFull",
        r"^StorageFull|No space left on device|Disk quota exceeded|ENOSPC|QuotaExceeded|XMinioStorageFull|Errno 28"
        r"|storage.{0,200}\bfull\b",
        "the disk or the storage is full: {message}",
        "free space or enlarge the volume; checkpoint.keep is the number of checkpoints that are kept",
    ),
    (
        "StorageReadOnly",
        r"^StorageReadOnly|Read-only file system|Errno 30",
        "the volume is read-only: {message}",
        "mount it for writing: see its access mode, and readOnly in roles.*.template",
    ),
    (
        "StorageForbidden",
        r"^StorageForbidden|^StorageUnavailable: .*[Pp]ermission denied",
        "the processes may not write to the storage: {message}",
        "set fsGroup or runAsUser in roles.*.template to the owner of the volume's files",
    ),
    (
        "StorageUnreachable",
        r"^StorageUnavailable: (?P<what>.*)",
        "the checkpoint storage cannot be used: {what}",
        "check checkpoint.storage, AWS_ENDPOINT_URL in its Secret, and the network to it",
    ),
    (
        "CheckpointDamaged",
        "the checkpoint that the job names does not verify: {message}",
        "name another one in checkpoint.resume, or use Auto, which skips damaged ones",
    ),
)

INPUTS: tuple[Cause, ...] = rows(
    Kind.FAILED,
    [Source.ATTEMPT],
    (
        "InputNotFound",
        "an input is not there: {message}",
        "correct its source in spec.inputs; for a private repository name a Secret with HF_TOKEN in its secretRef",
    ),
    (
        "InputForbidden",
        "an input may not be read: {message}",
        "correct the Secret in its secretRef (HF_TOKEN, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), and what its owner may read",
    ),
    (
        "InputRefused",
        "an input cannot be used: {message}",
        "correct the source in spec.inputs, or what is stored there",
    ),
    (
        "InputDiskFull",
        "the disk is too small for an input: {message}",
        "free the disk of the node or its cache of inputs, use larger disks, or fetch only a folder of the source",
    ),
    (
        "InputUnreachable",
        r"^InputUnavailable: (?P<what>.*)",
        "an input cannot be fetched: {what}",
        "check HF_ENDPOINT or AWS_ENDPOINT_URL, the proxy variables of the trainer, and the network to the source; the job tries again",
    ),
)

PROGRAM: tuple[Cause, ...] = rows(
    Kind.FAILED,
    [Source.ATTEMPT, Source.CONTAINER],
    (
        "DeviceMemoryFull",
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError|RESOURCE_EXHAUSTED|cublas_status_alloc_failed",
        "the memory of a device is full: {message}",
        "make batch.globalSize smaller, raise batch.accumulationSteps, set config.precision: BFloat16, or divide the model with FSDP",
    ),
    (
        "MemoryFull",
        r"^(?:OutOfMemory|OOMKilled)|MemoryError|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory",
        "{subject} ran out of memory and was killed",
        "raise resources.limits.memory in spec.roles, read fewer samples ahead (trainer.input), or make batch.globalSize smaller",
    ),
    (
        "SharedMemoryFull",
        r"Bus error|/dev/shm|shared memory",
        "shared memory is full: {message}",
        "mount an emptyDir with medium: Memory at /dev/shm in roles.*.template, or set trainer.input.workers: 0",
        ("SIGBUS",),
    ),
    (
        "DriverTooOld",
        r"driver version is insufficient|driver on your system is too old|CUDA driver version",
        "the GPU driver of the node is too old for the image: {message}",
        "update the driver, use an image with an older CUDA, or choose other nodes",
    ),
    (
        "DeviceUnsupported",
        r"no kernel image is available",
        "the image has no code for this kind of GPU: {message}",
        "use an image whose framework supports it, or choose other nodes",
    ),
    (
        "DeviceAbsent",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device|CUDA_ERROR_NO_DEVICE",
        "no GPU is visible in the container: {message}",
        "request GPUs in roles.*.resources.limits (nvidia.com/gpu: 1), and look at the device plugin and runtimeClassName",
    ),
    (
        "DeviceBroken",
        r"\bXid\b|uncorrectable ECC|CUDA error: (?:unspecified launch failure|device-side|an illegal memory|hardware)|GPU has fallen off",
        "a GPU failed: {message}",
        "look at the node's GPU (nvidia-smi, Xid messages in its log), and cordon the node if it happens again",
    ),
    (
        "LossNotFinite",
        "the loss is not a finite number: {message}",
        "lower the learning rate, clip gradients, or look at the samples; trainer.config.nanLoss lets the training go on",
    ),
    (
        "ModuleMissing",
        r"(?:ModuleNotFoundError|ImportError): (?P<what>.*)",
        "the program imports something that the image does not have: {what}",
        "install it in the image, or bring the file with muster submit --code DIR",
    ),
    (
        "FileMissing",
        r"FileNotFoundError: (?P<what>.*)|No such file or directory(?P<other>.*)",
        "the program opens a file that does not exist in the pod: {message}",
        "mount the data in roles.*.template, or correct the path",
    ),
    (
        "PermissionDenied",
        r"PermissionError: (?P<what>.*)",
        "the program may not use a file: {what}",
        "set fsGroup or runAsUser in roles.*.template, or write to a folder of the job",
    ),
    (
        "AddressUnknown",
        r"Name or service not known|Temporary failure in name resolution|getaddrinfo|Name does not resolve",
        "a pod cannot resolve a host name: {message}",
        "look at the cluster's DNS, and at egress rules of network policies (port 53)",
    ),
    (
        "NetworkBroken",
        r"NCCL (?:error|WARN)|ncclSystemError|ncclRemoteError|Gloo connectFullMesh|Connection (?:timed out|refused)|No route to host"
        r"|DistNetworkError|DEADLINE_EXCEEDED|RendezvousConnectionError|socket ?timeout",
        "processes cannot reach each other: {message}",
        "look for network policies and service meshes that keep the job's pods apart, and at the network interface (NCCL_SOCKET_IFNAME)",
    ),
    (
        "VersionSkew",
        r"protocol version|incompatible version|unsupported wire|different versions|version skew",
        "parts of the job are of different versions: {message}",
        "use the trainer images of the operator's version, or rebuild your image on them",
    ),
    (
        "Segfault",
        r"Segmentation fault",
        "a process crashed in native code: {message}",
        "see the log: {logs}; often two libraries in the image are incompatible",
        ("SIGSEGV",),
    ),
    (
        "IllegalInstruction",
        r"Illegal instruction",
        "the processor does not have an instruction that the program uses",
        "use an image that is built for the nodes' processors, or choose newer nodes",
        ("SIGILL",),
    ),
    (
        "Aborted",
        NEVER,
        "a process aborted itself: {message}",
        "see the log: {logs}",
        ("SIGABRT",),
    ),
    (
        "Killed",
        NEVER,
        "a process was killed from outside: {message}",
        "look for the out-of-memory killer in the kernel log of the node, and for programs that kill processes",
        ("SIGKILL", "SIGTERM"),
    ),
    (
        "ImageProgramMissing",
        NEVER,
        "the command is not in the image, or is not executable: {message}",
        "correct trainer.command; muster submit --code DIR brings files of your own",
        (126, 127),
    ),
    (
        "ConfigurationWrong",
        r"^BadConfiguration: (?P<what>.*)",
        "the job cannot run as it is written: {what}",
        "correct the field that the message names, then delete the job and submit it again",
    ),
    (
        "Hang",
        r"^Hang: (?P<what>.*)",
        "{subject} hung, and was stopped: {what}",
        "status.attempts[].stacks has the stack of each rank (kubectl describe); raise recovery.hang where steps or saves take longer",
    ),
    (
        "NotSaved",
        r"^PreemptedNotSaved: (?P<what>.*)",
        "{subject} was asked to stop and could not save in time: {what}",
        "raise checkpoint.gracePeriodSeconds, save to faster storage, or save more often",
    ),
    (
        "Preempted",
        r"^Preempted\b",
        "{subject} was asked to stop, and saved",
        "nothing: the job resumes from that save",
    ),
    (
        "StartFailed",
        r"^StartFailed: (?P<what>.*)",
        "{subject} never started: {what}",
        "see kubectl describe pod",
    ),
    (
        "ProgramFailed",
        r"^(?:UserError|RepeatedError|Error): (?P<what>.*)",
        "the training code failed ({subject}): {what}",
        "see the traceback: {logs}; correct the code and submit again",
    ),
    (
        "PeerLost",
        "{subject} lost the connection to another replica, and no replica says why: {message}",
        "see the logs of all ranks: {logs}; look at the network and at the nodes",
    ),
    (
        "ProcessKilled",
        r"^ProcessKilled: (?P<what>.*)",
        "a process ended by a signal: {what}",
        "see the log: {logs}",
    ),
)

END_OF_JOB: tuple[Cause, ...] = rows(
    Kind.FAILED,
    [Source.END],
    (
        "DeadlinePassed",
        r"^ActiveDeadlineExceeded: (?P<what>.*)",
        "{what}",
        "raise activeDeadlineSeconds, then use muster restart: the job resumes from its last commit",
    ),
    (
        "UsageLimit",
        r"^(DeviceHours|Cost)LimitReached: (?P<what>.*)",
        "{what}",
        "raise the limit in spec.usageLimits, then use muster restart: the job resumes from its last commit",
    ),
    (
        "NoProgress",
        r"^NoProgress: (?P<what>.*)",
        "the job failed: {what}",
        "remove the cause of the failures, then use muster restart; recovery.attemptsWithoutProgress is the limit",
    ),
    (
        "BudgetExceeded",
        r"^(?:Preemption|Infrastructure|Application)LimitExceeded: (?P<what>.*)",
        "the job failed: {what}",
        "remove the cause of the failures, then use muster restart; spec.recovery has the budgets",
    ),
    (
        "StartupDeadline",
        r"^StartupDeadlineExceeded: (?P<what>.*)",
        "{what}",
        "provide what it waited for, or raise startupDeadlineSeconds; then use muster restart",
    ),
    (
        "Failed",
        r"^(?P<what>.*)",
        "the job failed: {what}",
        "see the log: {logs}",
    ),
)
