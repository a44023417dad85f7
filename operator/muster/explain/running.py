"""Causes that make a job slow, what a job does, and what may go wrong later."""

from __future__ import annotations

from muster.explain.cause import Cause, Kind, rows
from muster.explain.evidence import Source

NODES: tuple[Cause, ...] = rows(
    Kind.NODE,
    [Source.STATE],
    (
        "NodeNotReady",
        "the node of {subject} does not answer: {message}",
        "see kubectl describe node; when Muster or Kubernetes gives the node up, the job resumes on another one",
    ),
)

SLOW: tuple[Cause, ...] = rows(
    Kind.SLOW,
    [Source.STATE, Source.CONDITION, Source.NOTICE],
    (
        "ReportsStopped",
        "the replicas run, but have reported nothing for {message}",
        "look at the operator, and at network policies between the pods and its channel; muster logs shows whether the pods train",
    ),
    (
        "NoFirstStep",
        "all replicas run, but have made no step for {message}",
        "see muster logs: large models and data load slowly; processes that cannot reach each other wait here, too (network policies)",
    ),
    (
        "Straggler",
        r"^SlowRank: (?P<what>.*)",
        "a rank is slower than the others, which wait for it: {what}",
        "look at its node (thermal limits, other pods, a broken link), or at uneven shares of data; delete its pod to move it",
    ),
    (
        "InputStalled",
        r"^InputStalled: (?P<what>.*)",
        "the training waits for samples: {what}",
        "raise trainer.input.workers and prefetch, set trainer.input.cache, or use faster storage for the data",
    ),
    (
        "SavesBlock",
        "saves block the training for {message} of the time",
        "save less often (raise checkpoint.everySteps), leave checkpoint.async at true, or use faster storage",
    ),
    (
        "TimeLost",
        "restarts cost {message} of the time",
        "the causes of the restarts are listed below; save more often if steps are redone",
    ),
    (
        "EnvironmentsDiffer",
        r"^EnvironmentsDiffer: (?P<what>.*)",
        "ranks run different software or devices: {what}",
        "use one image and one kind of node for all replicas of a role",
    ),
    (
        "FewerWorkers",
        "the job is elastic and trains on {message} workers, because the others have no room or were lost",
        "wait: more workers join when they run; or free room in the cluster",
    ),
    (
        "ClassHasNoNode",
        r"^WaitingForClass: (?P<what>.*)",
        "{what}",
        "wait, add nodes of this class, or write other classes in scheduling.capacity; kubectl get nodes --show-labels shows the labels",
    ),
    (
        "OnOtherClass",
        r"^(?:FellBack|Returning): (?P<what>.*)",
        "{what}",
        "wait: the job goes back by itself; scheduling.capacity has its classes and times",
    ),
)

STATES: tuple[Cause, ...] = rows(
    Kind.STATE,
    [Source.STATE],
    (
        "InWorkerCluster",
        "MultiKueue has copied the job to another cluster ({message}), which has its pods; the status here is that of the copy",
        "use muster explain {subject} and muster logs {subject} with the kubeconfig of that cluster (--kubeconfig, --context)",
    ),
    ("Succeeded", r"^Succeeded", "the job has succeeded{message}", "nothing"),
    (
        "CompletedWithoutReport",
        "the program ended with exit code 0, but reported no step and no checkpoint, so nobody knows whether it trained",
        "see muster logs; a program that calls muster_training.report shows its steps (docs/own-loop.md)",
    ),
    ("Suspending", r"^Suspending", "the job is being suspended: its replicas save and stop", "wait"),
    (
        "HeldBack",
        "the job failed, and tries again at {message}",
        "wait, or remove the cause of the failures",
    ),
    ("Running", r"^Running", "the job runs{message}", "nothing"),
    (
        "InputsFetched",
        "{subject} is being fetched: {message}",
        "wait; if there is no progress, see {logs}; a cache on the nodes makes later starts faster",
    ),
    (
        "ContainersStart",
        "the pods have nodes, and their containers start: {message}",
        "wait: images are pulled and volumes are mounted; kubectl describe pod shows what takes long",
    ),
    (
        "Starting",
        r"^Starting: (?P<what>.*)",
        "the job starts: {what}",
        "wait; if it takes long, use muster explain again",
    ),
)

RISKS: tuple[Cause, ...] = rows(
    Kind.RISK,
    [Source.CONDITION, Source.NOTICE, Source.STATE],
    (
        "ResumedTooEarly",
        r"^StartedOver: (?P<what>.*)",
        "the job did not resume from its newest checkpoint: {what}",
        "see the notices of the job: that commit was damaged, or could not be read",
    ),
    (
        "GraceTooShort",
        r"^(?:GraceTooShort|PreemptedNotSaved): (?P<what>.*)",
        "the grace period is too short to save: {what}",
        "raise checkpoint.gracePeriodSeconds, or the grace period of the nodes",
    ),
    (
        "StorageOneNode",
        r"^(?:OneNode|OnePod): (?P<what>.*)",
        "not all pods can reach the checkpoints: {what}",
        "use a ReadWriteMany claim or object storage",
    ),
    (
        "WorldOnOneNode",
        r"^WorldOnOneNode: (?P<what>.*)",
        "{what}",
        "see kubectl get pods -o wide; cordon the node first if another pod of the job could take the room",
    ),
    (
        "CheckpointSkipped",
        r"^CheckpointDamaged: (?P<what>.*)",
        "a checkpoint is damaged: {what}",
        "look at the storage; the job resumed from an older commit",
    ),
    (
        "SavesFail",
        r"^SaveFailed: (?P<what>.*)",
        "a checkpoint could not be saved: {what}",
        "look at the storage; if no save succeeds within ten minutes, the attempt ends",
    ),
    ("RescueFailed", r"^RescueFailed: (?P<what>.*)", "a rank could not save its last step: {what}", "look at the storage"),
    (
        "LossWarning",
        r"^LossNotFinite: (?P<what>.*)",
        "the loss is not a finite number: {what}",
        "lower the learning rate, or look at the data",
    ),
    (
        "ProcessesRemain",
        r"^ProcessesRemain: (?P<what>.*)",
        "processes do not end: {what}",
        "look at the node: its file system or a device hangs",
    ),
    (
        "PolicyMayBlock",
        "the network policy {message} also selects the job's pods, and may keep them apart",
        "allow traffic among pods with the label muster.dev/job-name of this job, to DNS and to the operator's coordination service",
    ),
    (
        "NodeAvoided",
        "attempts failed repeatedly on {message}, or a device of it failed, so new pods avoid that node",
        "look at the node, and cordon it if it is broken",
    ),
    (
        "NoStorage",
        "the job has no checkpoint storage: after a failure it starts over",
        "give it checkpoint.storage: a ReadWriteMany claim or an s3:// URI",
    ),
)
