"""Causes that keep containers from starting. The texts are those of the kubelet and containerd."""

from __future__ import annotations

from muster.explain.cause import Cause, Kind, rows
from muster.explain.evidence import Source

_PULL = r"\A(?>.*?(?:(?:^|: )(?:ErrImagePull|ImagePullBackOff): |^Failed: Failed to pull image)).*?"

STARTING: tuple[Cause, ...] = rows(
    Kind.STARTING,
    [Source.STARTING, Source.ATTEMPT, Source.CONTAINER],
    (
        "ImageNameInvalid",
        r"InvalidImageName",
        "the image name is not valid: {message}",
        "correct trainer.image, or the image in roles.*.template",
    ),
    (
        "ImageNeverPulled",
        r"ErrImageNeverPull",
        "the image is not on the node, and imagePullPolicy is Never",
        "load it onto the nodes, or use imagePullPolicy: IfNotPresent in roles.*.template",
    ),
    (
        "ImageRateLimit",
        r"toomanyrequests|pull rate limit|429 Too Many",
        "the registry refuses further pulls: its rate limit is reached",
        "wait, give the pods an imagePullSecret, or use a mirror",
    ),
    (
        "ImagePlatform",
        r"no match for platform|does not match the specified platform|exec format error",
        "the image is not built for the nodes' processors",
        "build it for their platform, or choose nodes with the label kubernetes.io/arch",
    ),
    (
        "ImageDiskFull",
        rf"{_PULL}no space left on device",
        "the image does not fit on the node's disk",
        "free the disk of the node, use larger disks, or a smaller image",
    ),
    (
        "ImageSecretMissing",
        r"FailedToRetrieveImagePullSecret: .*",
        "the imagePullSecret of the pods does not exist",
        "create it in this namespace: kubectl create secret docker-registry",
    ),
    (
        "ImageForbidden",
        rf"{_PULL}(?:unauthorized|authorization failed|authentication required|no basic auth credentials|401|403|access denied"
        r"|insufficient_scope|denied:)",
        "the registry does not let the nodes pull the image, or the image does not exist there: {message}",
        "check the name, and give imagePullSecrets in roles.*.template: kubectl create secret docker-registry",
    ),
    (
        "ImageNotFound",
        rf"{_PULL}(?:not found|manifest unknown|does not exist|name unknown)",
        "the image does not exist: {message}",
        "correct trainer.image or its tag, or push the image",
    ),
    (
        "RegistryUnreachable",
        rf"{_PULL}(?:dial tcp|i/o timeout|no such host|connection refused|connection reset|TLS handshake|x509|deadline exceeded|EOF)",
        "the nodes cannot reach the registry: {message}",
        "check the registry's address, its certificate, and the nodes' network and proxy",
    ),
    (
        "ImagePull",
        r"(?:ErrImagePull|ImagePullBackOff|RegistryUnavailable|ImageInspectError)",
        "the image cannot be pulled: {message}",
        "see kubectl describe pod for the registry's answer",
    ),
    (
        "ConfigMapMissing",
        r"configmaps? \"(?P<name>[^\"]+)\" not found",
        "the ConfigMap {name} does not exist",
        "create it, or submit with muster submit --code DIR, which makes the one for trainer.code",
    ),
    (
        "SecretMissing",
        r"secrets? \"(?P<name>[^\"]+)\" not found",
        "the Secret {name} does not exist",
        "create it in this namespace, or correct checkpoint.storage.secretRef or roles.*.template",
    ),
    (
        "KeyMissing",
        r"(?:couldn't find key (?P<key>\S+) in (?P<where>\S+ \S+)|references non-existent (?:config|secret) key:? ?(?P<other>\S*))",
        "a ConfigMap or Secret has no key {key}{other}",
        "add the key, or correct its name in roles.*.template",
    ),
    (
        "RunsAsRoot",
        r"runAsNonRoot",
        "the image runs as root, and the pod forbids that (runAsNonRoot)",
        "set runAsUser in roles.*.template, or USER in the image",
    ),
    (
        "CommandMissing",
        r"executable file not found in \$PATH|exec: .{0,400}no such file or directory|exec: .{0,400}permission denied"
        r"|can't open file '(?P<file>[^']+)': \[Errno 2\]",
        "the program to start is not in the image: {message}",
        "correct trainer.command or trainer.script; muster submit --code DIR brings files of your own",
    ),
    (
        "VolumeAttachFailed",
        r"FailedAttachVolume: (?P<what>.*)",
        "a volume cannot be attached to the node: {what}",
        "see kubectl describe pod and the logs of the storage driver",
    ),
    (
        "MountFailed",
        r"FailedMount: (?P<what>.*)|FailedMapVolume: (?P<other>.*)",
        "a volume cannot be mounted: {what}{other}",
        "check the volume and its server; the node needs the driver's client (nfs-common for NFS)",
    ),
    (
        "NetworkSetupFailed",
        r"FailedCreatePodSandBox: (?P<what>.*)|NetworkNotReady: (?P<other>.*)",
        "the node cannot set up the pod's network: {what}{other}",
        "look at the network plugin on that node",
    ),
    (
        "DeviceAllocation",
        r"UnexpectedAdmissionError: (?P<what>.*)",
        "the node could not give the pod its devices: {what}",
        "look at the device plugin on that node; a device may be broken: cordon the node",
    ),
    (
        "NodeFull",
        r"(?-i:\bOutOf(?P<resource>cpu|memory|pods|ephemeral-storage|[\w.-]{1,253}/[\w.-]{1,63})\b)",
        "the node had no {resource} left when the pod arrived",
        "nothing, if this is rare: Muster creates the pod again; otherwise look for pods that bypass the scheduler",
    ),
    (
        "NodeRejected",
        r"^(?:NodeAffinity|NodePorts|Topology\w*|SysctlForbidden|AppArmor): (?P<what>.*)",
        "the kubelet did not admit the pod: {what}",
        "correct in roles.*.template what the message names",
    ),
    (
        "SupervisorNotCopied",
        r"^SupervisorNotCopied: (?P<what>.*)",
        "the supervisor could not be copied into the image of the job: {what}",
        "see the log: {logs}; perhaps the images of the operator and of the job have different versions",
    ),
    (
        "InitContainerFailed",
        r"^InitContainerFailed: (?P<what>.*)",
        "an init container of the job failed: {what}",
        "see its log: {logs}; correct the container in roles.*.template",
    ),
    (
        "SideCarCrashes",
        r"CrashLoopBackOff: (?P<what>.*)",
        "a container crashes again and again: {what}",
        "see its log: {logs} --previous",
    ),
    (
        "ContainerConfig",
        r"CreateContainer(?:Config)?Error: (?P<what>.*)|RunContainerError: (?P<more>.*)|StartError: (?P<other>.*)",
        "the container cannot be started: {what}{more}{other}",
        "correct in roles.*.template what the message names",
    ),
) + rows(
    Kind.STARTING,
    [Source.STATE],
    (
        "ImagePulling",
        "the image is still being pulled: {message}",
        "wait; a smaller image starts sooner, and so does one that is on the nodes already",
    ),
    (
        "StuckTerminating",
        "{subject} did not end in time: {message}",
        "see kubectl describe node; Muster removes the pod by force after a while",
    ),
)
