"""Causes that keep the operator from creating pods. The texts of refusals are those of kube-apiserver."""

from __future__ import annotations

from muster.explain.cause import Cause, Kind, rows
from muster.explain.evidence import Source

NOT_ACCEPTED: tuple[Cause, ...] = rows(
    Kind.NOT_ACCEPTED,
    [Source.STATE],
    (
        "BeingDeleted",
        "the job is being deleted{message}",
        "wait; a finalizer that nothing removes keeps the job: see metadata.finalizers, and ask the owner of the controller that set it",
    ),
    (
        "ManagedByOther",
        "the job names another controller: spec.managedBy is {message}",
        "start that controller, or delete the job and submit it again without managedBy",
    ),
    (
        "WorkloadAbsent",
        "MultiKueue does not copy the job to another cluster, because the job has no Workload: {message}",
        "name a LocalQueue in scheduling.queue, and set queueing.kueue.enabled of the chart in this cluster",
    ),
    (
        "CopyRefused",
        "MultiKueue does not copy the job to another cluster: {message}",
        "list TrainingJob.v1beta1.muster.dev in multiKueue.externalFrameworks of Kueue's configuration; docs/queues.md has all steps",
    ),
    (
        "DefinitionOld",
        "the cluster's TrainingJob definition is older than this command and lacks {message}",
        "apply the crds/ of this version: Helm does not upgrade a definition by itself unless the chart owns it",
    ),
    (
        "OperatorDown",
        "no operator works on the job: {message}",
        "look at the operator and its logs: kubectl -n muster-system get pods; perhaps watchNamespaces of the chart lacks this namespace",
    ),
    (
        "Suspended",
        "the job is suspended",
        "muster resume {subject}",
    ),
    (
        "HeldByLimit",
        "the job is suspended by a limit of what it may use: {message}",
        "raise or remove the limit in spec.usageLimits; the job resumes by itself",
    ),
) + rows(
    Kind.NOT_ACCEPTED,
    [Source.CONDITION],
    (
        "Invalid",
        r"^Invalid: (?P<problem>.*)",
        "the job is not valid: {problem}",
        "correct the field and apply the file again; muster validate JOB.YAML checks it before",
    ),
)

REFUSED: tuple[Cause, ...] = rows(
    Kind.REFUSED,
    [Source.REFUSED],
    (
        "QuotaExceeded",
        r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<requested>[^:]*), used: (?P<used>[^:]*), limited: (?P<limit>[^;]*)",
        "the quota {quota} of the namespace is used up: a pod needs {requested}; {used} of {limit} are in use",
        "end other jobs of the namespace, request fewer replicas or resources, or have the quota raised",
    ),
    (
        "QuotaNeedsValues",
        r"failed quota: (?P<quota>[^:]+): must specify (?P<fields>[^;]*)",
        "the quota {quota} requires {fields} in each container",
        "write them in roles.*.resources, and for side-cars in roles.*.template",
    ),
    (
        "PodSecurity",
        r"violates PodSecurity \"(?P<level>[^\"]+)\": (?P<what>.*)",
        "the namespace enforces the pod security level {level}, and the pods violate it: {what}",
        "set the securityContext in roles.*.template, or have the label pod-security.kubernetes.io/enforce changed",
    ),
    (
        "LimitRange",
        r"(?P<what>(?:(?:maximum|minimum) [\w./-]+ usage per|(?<![\w./-])[\w./-]+ max limit to request ratio per) .*)",
        "a LimitRange of the namespace forbids the resources of the pods: {what}",
        "change roles.*.resources to lie within it: kubectl describe limitrange",
    ),
    (
        "ServiceAccountMissing",
        r"error looking up service account (?P<account>[^:\s]+)",
        "the service account {account} does not exist",
        "create it, or name another one: serviceAccountName in roles.*.template",
    ),
    (
        "PriorityClassMissing",
        r"no PriorityClass with name (?P<name>\S+) was found",
        "there is no PriorityClass {name}",
        "use one of kubectl get priorityclasses in scheduling.priorityClassName, or create it",
    ),
    (
        "RuntimeClassMissing",
        r"RuntimeClass \"(?P<name>[^\"]+)\" not found",
        "there is no RuntimeClass {name}",
        "use one of kubectl get runtimeclasses in roles.*.template, or create it",
    ),
    (
        "WebhookDenied",
        r"admission webhook \"(?P<name>[^\"]+)\" denied the request:?\s*(?P<what>.*)",
        "the admission webhook {name} refuses the pods: {what}",
        "change what it names in roles.*.template, or ask the owner of the webhook",
    ),
    (
        "PolicyDenied",
        r"ValidatingAdmissionPolicy '(?P<name>[^']+)'.* denied request:?\s*(?P<what>.*)",
        "the admission policy {name} refuses the pods: {what}",
        "change what it names in roles.*.template, or ask the owner of the policy",
    ),
    (
        "NamespaceTerminating",
        r"because it is being terminated",
        "the namespace is being deleted, so nothing can be created in it",
        "submit the job in another namespace",
    ),
    (
        "OperatorRights",
        r"User \"(?P<user>[^\"]+)\" cannot (?P<verb>\w+) resource \"(?P<resource>[^\"]+)\"",
        "the operator ({user}) may not {verb} {resource} in this namespace",
        "add this namespace to watchNamespaces of the chart, or bind the operator's role here",
    ),
    (
        "PodInvalid",
        r"Pod \"[^\"]+\" is invalid: (?P<what>.*)",
        "the pods are not valid: {what}",
        "correct roles.*.template; muster render JOB.YAML shows the pods",
    ),
) + rows(
    Kind.REFUSED,
    [Source.REFUSED],
    (
        "PodsRefused",
        r"^ReplicasRefused: (?P<what>.*)",
        "the API server refuses the pods: {what}",
        "change what it names; muster render JOB.YAML shows the pods",
    ),
)
