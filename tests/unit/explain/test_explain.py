"""The order of causes, and the causes that follow from the state of a job and its cluster."""

from __future__ import annotations

import cProfile
import pstats
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.explain.brief import brief
from muster.explain.evidence import Source, evidence_in, time_of
from muster.explain.explain import as_lines, explain
from muster.explain.snapshot import Snapshot
from tests.support.texts import absent

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def job(status: dict[str, Any] | None = None, *, age: float = 300, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    storage = {"storage": {"uri": "s3://bucket/x"}}
    return {
        "metadata": {
            "name": "digits",
            "namespace": "team",
            "uid": "j",
            "generation": 1,
            "creationTimestamp": ago(age),
            **(metadata or {}),
        },
        "spec": {"strategy": "DDP", "roles": {"worker": {"replicas": 2}}, "checkpoint": storage, **spec},
        **({} if status is None else {"status": {"observedGeneration": 1, **status}}),
    }


def pod(index: int = 0, *, age: float = 60, node: str = "", status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {"muster.dev/role": "worker", "muster.dev/index": str(index), "muster.dev/job-name": "digits"}
    return {
        "metadata": {"name": f"digits-worker-{index}", "uid": f"p{index}", "labels": labels, "creationTimestamp": ago(age), **metadata},
        "spec": {"containers": [{"name": "trainer"}], **({"nodeName": node} if node else {})},
        "status": status or {"phase": "Pending"},
    }


def unscheduled(message: str) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": reason, "message": message}}}]}


RUNS = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}
RUNNING = {"phase": "Running", "world": {"readyTime": ago(50), "firstStepTime": ago(40)}, "progress": {"step": 7, "updatedAt": ago(2)}}
FAILED_BEFORE = {
    "attempt": 0,
    "class": "Application",
    "reason": "OutOfMemory",
    "message": "the container ran out of memory",
    "replica": "worker-0",
}


RESERVED = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved in ClusterQueue all"}
EVICTED = {"type": "Evicted", "status": "True", "message": "The LocalQueue is stopped"}


def unreserved(message: str) -> dict[str, Any]:
    return {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}


def copied(workload: Any, status: Any = None, *, unreadable: tuple[str, ...] = (), **spec: Any) -> Snapshot:
    """A job that MultiKueue copies to another cluster, with the status of its Workload, and with old writes of its own status."""
    old = {"managedFields": [{"time": ago(400), "subresource": "status"}]}
    members = {"members": [{"role": "worker", "index": 0, "uid": "elsewhere"}]}
    whole = job(status, metadata=old, managedBy="kueue.x-k8s.io/multikueue", scheduling={"queue": "team"}, **spec)
    if "world" in (status or {}):
        whole["status"]["world"] = {**whole["status"]["world"], **members}
    return Snapshot(now=NOW, job=whole, workload=None if workload is None else {"status": workload}, unreadable=unreadable)


def event(reason: str, message: str, *, of: str = "p0", seconds: float = 40, kind: str = "Pod", name: str = "") -> dict[str, Any]:
    times = {"firstTimestamp": ago(seconds), "lastTimestamp": ago(seconds)}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": {"kind": kind, "uid": of, "name": name}, **times}


def trained(seconds: float, *, attempts: Any = (), evaluator: bool = False, **spec: Any) -> dict[str, Any]:
    """A job that trains on two workers, with a status that was last written so many seconds ago."""
    members = [{"role": "worker", "index": index, "uid": f"p{index}"} for index in range(2)]
    members += [{"role": "evaluator", "index": 0, "uid": "lost"}] if evaluator else []
    world = {**RUNNING["world"], "members": members}
    fields = [{"time": ago(250)}, {"time": ago(seconds), "subresource": "status"}]
    return job({**RUNNING, "world": world, "attempts": list(attempts)}, metadata={"managedFields": fields}, **spec)


def causes(snapshot: Snapshot) -> list[str]:
    return [("-" if each.is_past else "") + each.cause.id for each in explain(snapshot).findings]


def of(status: dict[str, Any] | None, *pods: dict[str, Any], **fields: Any) -> Snapshot:
    return Snapshot(now=NOW, job=fields.pop("job", None) or job(status), pods=pods, **fields)


STARTING = {"phase": "Starting", "message": "waiting for worker-0"}
GANG = {
    "phase": "Starting",
    "message": "waiting for nodes for 2 pods at once (PodGroup digits of scheduling.k8s.io): Unschedulable: no free CPU",
}
GANG_WAITS = "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"
REFUSED = {
    "type": "Ready",
    "status": "False",
    "reason": "ReplicasRefused",
    "message": "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1",
}
OF_TWO = {"gangScheduler": "scheduling.k8s.io", "roles": [{"name": "worker", "desired": 2}]}
CLAIMED = {"storage": {"persistentVolumeClaim": {"claimName": "data"}}}
NODE = {"metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "4"}, "conditions": []}}
SILENT = {
    "metadata": {"name": "node-1"},
    "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]},
}


LOST_PEER = {"attempt": 0, "class": "Infrastructure", "reason": "PeerLost", "message": "connection closed by peer", "replica": "worker-0"}
RECOVERING = {"phase": "Recovering", "message": "worker-1 failed. Restarting; waiting for worker-0", "attempts": [LOST_PEER]}
ON_SILENT_NODE = (pod(node="node-1", status=RUNS, deletionTimestamp=ago(60)),)


def pod_requesting(resource: str, amount: str) -> dict[str, Any]:
    unfitting = pod(status=unscheduled(f"0/1 nodes are available: 1 Insufficient {resource}"))
    unfitting["spec"]["containers"][0]["resources"] = {"limits": {resource: amount}}
    return unfitting


def never_started(awaited: dict[str, str]) -> Snapshot:
    message = "the job did not start within 9 s: it waited for worker-0 (0 of 1 run)"
    failed = {"type": "Failed", "status": "True", "reason": "StartupDeadlineExceeded", "message": message}
    return of({"phase": "Failed", "conditions": [failed], "awaited": [{**awaited, "replica": "worker-0"}]})


FIRST: dict[str, tuple[Snapshot, list[str]]] = {
    "a job that no operator has seen": (of(None), ["OperatorDown"]),
    "a job that was submitted just now": (of(None, job=job(None, age=2)), ["Starting"]),
    "a spec that the operator has not read": (of(None, job=job({"observedGeneration": 1}, metadata={"generation": 2})), ["OperatorDown"]),
    "a job without a pod that its status has": (of(None, pod(1, status=RUNS), job=trained(40)), ["OperatorDown"]),
    "a job with a pod that is being deleted": (
        of(None, pod(status=RUNS, deletionTimestamp=ago(1)), pod(1, status=RUNS), job=trained(40)),
        ["OperatorDown"],
    ),
    "a job with a pod that has failed": (of(None, pod(status={"phase": "Failed"}), pod(1, status=RUNS), job=trained(40)), ["OperatorDown"]),
    "a job whose status is old, with all its pods": (of(None, pod(status=RUNS), pod(1, status=RUNS), job=trained(4000)), ["Running"]),
    "a job that has just lost a pod": (of(None, pod(1, status=RUNS), job=trained(10)), ["Running"]),
    "a job of which the user may not read the pods": (of(None, job=trained(40), unreadable=("pods",)), ["Running"]),
    "a job whose pods save before a suspension": (
        of(None, pod(status=RUNS, deletionTimestamp=ago(1)), job=trained(40, suspend=True)),
        ["Suspending", "Running"],
    ),
    "a job whose attempt has ended, and whose pods save": (
        of(None, pod(status=RUNS, deletionTimestamp=ago(1)), job=trained(40, attempts=[{"attempt": 0, "endTime": ago(40)}])),
        ["Running"],
    ),
    "a job whose evaluator has failed": (of(None, pod(status=RUNS), pod(1, status=RUNS), job=trained(40, evaluator=True)), ["Running"]),
    "another controller": (of(None, job=job(None, managedBy="example.com/other")), ["ManagedByOther"]),
    "a copy in another cluster": (copied({"clusterName": "east"}, RUNNING), ["InWorkerCluster", "Running"]),
    "a copy in a cluster that the user may not learn": (copied(None, RUNNING, unreadable=("workloads",)), ["InWorkerCluster", "Running"]),
    "a copy that no cluster has admitted": (
        copied({"conditions": [RESERVED], "nominatedClusterNames": ["east"]}, RUNNING),
        ["WorkersWait"],
    ),
    "a copy that ends": (copied({"clusterName": "east", "conditions": [RESERVED, EVICTED]}, RUNNING), ["TakenBack", "Running"]),
    "a copy without an adapter": (
        copied({"conditions": [RESERVED], "admissionChecks": [{"state": "Rejected", "message": "No multikueue adapter found"}]}),
        ["CopyRefused"],
    ),
    "a copied job whose queue has no quota left": (
        copied({"conditions": [unreserved("couldn't assign flavors: insufficient unused quota for cpu in flavor main, 1 more needed")]}),
        ["QuotaUsed"],
    ),
    "a copied job whose Workload is new": (copied({}), ["InManagerQueue"]),
    "a copied job without a Workload": (copied(None, None), ["WorkloadAbsent"]),
    "a copied job that is suspended": (copied(None, {"phase": "Suspended"}, suspend=True), ["Suspended"]),
    "a copied job that has ended": (copied(None, {"phase": "Succeeded"}), ["Succeeded"]),
    "a deleted job that a finalizer keeps": (
        of(None, job=job(RUNNING, metadata={"deletionTimestamp": ago(5), "finalizers": ["example.com/theirs"]})),
        ["BeingDeleted", "Running"],
    ),
    "an old definition": (of(STARTING, spec_fields=frozenset({"strategy"})), ["DefinitionOld"]),
    "a suspended job": (of(None, job=job({"phase": "Suspended"}, suspend=True)), ["Suspended"]),
    "a job that is being suspended": (of(None, pod(status=RUNS), job=job({"phase": "Running"}, suspend=True)), ["Suspending", "Running"]),
    "a pod that no scheduler has seen": (of(STARTING, pod()), ["SchedulerAbsent"]),
    "a gang that no scheduler has seen": (of({**GANG, **OF_TWO}, pod(), pod()), ["SchedulerAbsent", "GangWaits"]),
    "a gang of which a quota holds the second pod": (
        of({**GANG, **OF_TWO, "conditions": [REFUSED]}, pod()),
        ["QuotaExceeded", "GangWaits"],
    ),
    "a pod that asks for more than any node has": (
        of(STARTING, pod_requesting("nvidia.com/gpu", "8"), nodes=(NODE,)),
        ["NeverFits", "DevicesTaken"],
    ),
    "a pod that would fit if others ended": (of(STARTING, pod_requesting("nvidia.com/gpu", "4"), nodes=(NODE,)), ["DevicesTaken"]),
    "a claim that does not exist": (of(None, pod(age=1), job=job(STARTING, checkpoint=CLAIMED)), ["ClaimMissing"]),
    "a claim without a volume": (
        of(
            None,
            pod(status=unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims")),
            job=job(STARTING, checkpoint=CLAIMED),
            claims=({"metadata": {"name": "data"}, "status": {"phase": "Pending"}},),
            events=(
                event("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found', kind="PersistentVolumeClaim", name="data"),
            ),
        ),
        ["StorageClassMissing"],
    ),
    "a lost claim": (
        of(None, pod(age=1), job=job(STARTING, checkpoint=CLAIMED), claims=({"metadata": {"name": "data"}, "status": {"phase": "Lost"}},)),
        ["ClaimLost"],
    ),
    "an image that is pulled for long": (
        of(STARTING, pod(node="node-1", status=waiting("ContainerCreating")), events=(event("Pulling", 'Pulling image "own:1"'),)),
        ["ImagePulling"],
    ),
    "an image that does not exist": (
        of(
            STARTING,
            pod(node="node-1", status=waiting("ErrImagePull", "own:1: not found")),
            events=(event("Failed", "Error: ErrImagePull"),),
        ),
        ["ImageNotFound"],
    ),
    "a pod that does not go": (
        of(STARTING, pod(node="node-1", status=RUNS, deletionTimestamp=ago(90))),
        ["StuckTerminating"],
    ),
    "a pod on a node that does not answer": (of(RECOVERING, *ON_SILENT_NODE, nodes=(SILENT,)), ["NodeNotReady", "StuckTerminating"]),
    "a node that does not answer, as the record has it": (
        of({**RECOVERING, "attempts": [{**LOST_PEER, "reason": "NodeLost"}]}, *ON_SILENT_NODE, nodes=(SILENT,)),
        ["NodeNotReady", "StuckTerminating", "NodeLost"],
    ),
    "a node that does not answer": (of(RUNNING, pod(node="node-1", status=RUNS), nodes=(SILENT,)), ["NodeNotReady", "Running"]),
    "a job that runs": (of(RUNNING, pod(status=RUNS)), ["Running"]),
    "no first step": (of({"phase": "Running", "world": {"readyTime": ago(500)}}, pod(status=RUNS)), ["NoFirstStep", "Running"]),
    "no reports": (
        of({**RUNNING, "progress": {"step": 7, "updatedAt": ago(600)}}, pod(status=RUNS)),
        ["ReportsStopped", "Running"],
    ),
    "saves that block": (
        of({**RUNNING, "goodput": {"productiveSeconds": 100, "checkpointSeconds": 50}}, pod(status=RUNS)),
        ["SavesBlock", "Running"],
    ),
    "restarts that cost": (
        of({**RUNNING, "goodput": {"productiveSeconds": 100, "recoveringSeconds": 50}}, pod(status=RUNS)),
        ["TimeLost", "Running"],
    ),
    "fewer workers": (
        of(
            None,
            pod(status=RUNS),
            job=job(
                {**RUNNING, "world": {**RUNNING["world"], "members": [{"role": "worker"}]}}, elastic={"minReplicas": 1, "maxReplicas": 2}
            ),
        ),
        ["FewerWorkers", "Running"],
    ),
    "a back-off after a failure": (
        of({"phase": "Recovering", "attempts": [FAILED_BEFORE], "nextAttemptTime": (NOW + timedelta(seconds=9)).isoformat()}),
        ["MemoryFull", "HeldBack"],
    ),
    "a job that has recovered": (of({**RUNNING, "attempts": [FAILED_BEFORE]}, pod(status=RUNS)), ["Running", "-MemoryFull"]),
    "a failed job that has used up its restarts": (
        of(
            {
                "phase": "Failed",
                "attempts": [FAILED_BEFORE],
                "conditions": [
                    {"type": "Failed", "status": "True", "reason": "ApplicationLimitExceeded", "message": "the budget is used up"}
                ],
            }
        ),
        ["MemoryFull", "BudgetExceeded"],
    ),
    "a job that never started": (
        never_started({"kind": "Container", "reason": "ErrImagePull", "message": "own:1: not found"}),
        ["ImageNotFound", "StartupDeadline"],
    ),
    "a job whose pods never had nodes": (
        never_started({"kind": "Node", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu."}),
        ["CpuTaken", "StartupDeadline"],
    ),
    "a job whose pods were never created": (
        never_started({"kind": "Creation", "reason": "ReplicasRefused", "message": str(REFUSED["message"])}),
        ["QuotaExceeded", "StartupDeadline"],
    ),
    "a job that waits in a queue": (
        of(
            {
                "message": "waits in queue team: Pending: insufficient unused quota for cpu in flavor main, 2 more needed",
                "queue": {
                    "name": "team",
                    "since": "2026-01-01T00:00:00Z",
                    "position": 3,
                    "clusterQueuePosition": 7,
                    "summary": "3 in team",
                },
            }
        ),
        ["QuotaUsed", "InQueue"],
    ),
    "a gang of which one pod says why it gets no node": (
        of(GANG, pod(0, status=unscheduled(GANG_WAITS)), pod(1, status=unscheduled("0/1 nodes are available: 1 Insufficient cpu"))),
        ["CpuTaken", "GangWaits"],
    ),
    "a gang that says it in the same message": (
        of(GANG, pod(status=unscheduled(f"{GANG_WAITS}, first pod: 0/1 nodes are available: 1 node(s) had untolerated taint(s)"))),
        ["Tainted", "GangWaits"],
    ),
    "a gang whose claim has no volume": (
        of(GANG, pod(0, status=unscheduled(GANG_WAITS)), pod(1, status=unscheduled("pod has unbound immediate PersistentVolumeClaims"))),
        ["ClaimUnbound", "GangWaits"],
    ),
    "a gang of which one pod has an unknown reason": (
        of(GANG, pod(0, status=unscheduled(GANG_WAITS)), pod(1, status=unscheduled("0/1 nodes are available: 1 something new"))),
        ["GangWaits", "Unschedulable"],
    ),
    "a gang that lacks a pod because of a quota": (
        of({**GANG, "conditions": [REFUSED]}, pod(status=unscheduled(GANG_WAITS))),
        ["QuotaExceeded", "GangWaits"],
    ),
    "a gang of which one pod has a node and no image": (
        of(
            GANG,
            pod(0, status=unscheduled(GANG_WAITS)),
            pod(1, node="node-1", status=waiting("ErrImagePull", "own:1: not found")),
        ),
        ["ImageNotFound", "GangWaits"],
    ),
    "a policy of others": (
        of(RUNNING, pod(status=RUNS), policies=({"metadata": {"name": "deny"}, "spec": {"podSelector": {}}},)),
        ["Running", "PolicyMayBlock"],
    ),
    "an avoided node": (of({**RUNNING, "avoidedNodes": [{"name": "node-1"}]}, pod(status=RUNS)), ["Running", "NodeAvoided"]),
    "no storage": (of(None, pod(status=RUNS), job=job(RUNNING, checkpoint={})), ["Running", "NoStorage"]),
    "a job that has succeeded": (of({"phase": "Succeeded", "attempts": [FAILED_BEFORE]}), ["Succeeded", "-MemoryFull"]),
    "a job whose program reported nothing": (
        of({"phase": "Succeeded", "conditions": [{"type": "Complete", "status": "True", "reason": "CompletedWithoutReport"}]}),
        ["CompletedWithoutReport"],
    ),
}


def test_a_job_that_resumed_from_the_commit_of_an_earlier_job_says_so() -> None:
    [finding] = explain(of({**RUNNING, "attempts": [{"attempt": 0, "stepResumed": 500}]})).findings
    assert absent(finding.sentence, "step 500", "earlier job") == []


@pytest.mark.parametrize(("snapshot", "expected"), FIRST.values(), ids=FIRST)
def test_a_snapshot_has_the_expected_causes(snapshot: Snapshot, expected: list[str]) -> None:
    assert causes(snapshot) == expected


def test_each_finding_is_a_sentence_with_its_replicas_and_a_remedy() -> None:
    pods = [pod(index, status=unscheduled("0/1 nodes are available: 1 Insufficient cpu")) for index in range(5)]
    lines = as_lines(explain(of(STARTING, *pods, unreadable=("nodes",))))
    assert absent(lines[0], "digits", "Starting") == []
    assert absent(lines[1], "1. ", "worker-0, worker-1, worker-2", "2 more") == []
    assert absent(lines[2], "less CPU", "[CpuTaken]") == []
    assert "nodes" in lines[-1]


def test_messages_of_the_cluster_cannot_write_control_characters() -> None:
    lines = as_lines(explain(of(STARTING, pod(node="n", status=waiting("ErrImagePull", "\x1b[31mown:1: not found")))))
    assert not [line for line in lines if "\x1b" in line]


def test_made_up_reasons_of_events_do_not_add_up() -> None:
    events = tuple(event(f"Reason{number}", "x", seconds=number) for number in range(1000))
    assert len(evidence_in(of(None, pod(), events=events))) < 20


@pytest.mark.parametrize("time", ["10000-01-01T00:00:00Z", "soon"])
def test_a_time_that_no_clock_shows_counts_as_absent(time: str) -> None:
    assert time_of(time) is None


def calls_of_events(pods: int) -> int:
    """The function calls of an explanation of pods that pull images, with some events each."""
    reasons = ("Pulling", "BackOff", "Unhealthy")
    events = tuple(event(reason, "x", of=f"p{index}") for index in range(pods) for reason in reasons)
    snapshot = of(STARTING, *(pod(index, status=waiting("ContainerCreating")) for index in range(pods)), events=events)
    profile = cProfile.Profile()
    profile.enable()
    explain(snapshot)
    profile.disable()
    return int(vars(pstats.Stats(profile))["total_calls"])


def test_events_of_many_pods_are_not_compared_with_each_pod() -> None:
    calls_of_events(8)  # fills caches
    few, many = calls_of_events(32), calls_of_events(256)
    assert many < 12 * few, (few, many)


def failed_init(name: str) -> dict[str, Any]:
    ended = {"name": name, "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    return {
        "phase": "Failed",
        "initContainerStatuses": [ended],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }


@pytest.mark.parametrize(("container", "cause"), [("fetch-data", "InitContainerFailed"), ("muster-supervisor", "SupervisorNotCopied")])
def test_a_failed_init_container_is_named_with_the_command_for_its_log(container: str, cause: str) -> None:
    [finding] = explain(of(STARTING, pod(node="n", status=failed_init(container)))).findings
    assert finding.cause.id == cause
    assert container in finding.sentence
    assert f"kubectl logs digits-worker-0 -c {container}" in finding.remedy
    assert ("versions" in finding.remedy) == (cause == "SupervisorNotCopied")


def test_a_failed_attempt_names_the_command_for_its_log_also_if_it_is_the_first() -> None:
    error = {"attempt": 0, "class": "Application", "reason": "UserError", "message": "ValueError: x", "replica": "worker-0"}
    failed, *_ = explain(of({"phase": "Recovering", "attempts": [error]})).findings
    assert failed.cause.id == "ProgramFailed"
    assert "muster logs digits --attempt 0" in failed.remedy


def test_the_end_of_a_job_does_not_repeat_the_error_of_its_last_attempt() -> None:
    error = {"attempt": 3, "class": "Application", "reason": "UserError", "message": "ValueError: no such column", "replica": "worker-0"}
    message = "your code failed 4 times (limit: 3 restarts); worker-0: ValueError: no such column"
    failed = {"type": "Failed", "status": "True", "reason": "ApplicationLimitExceeded", "message": message}
    first, second = explain(of({"phase": "Failed", "attempts": [error], "conditions": [failed]})).findings
    assert "no such column" in first.sentence
    assert second.sentence.endswith("your code failed 4 times (limit: 3 restarts)")


def test_the_deadline_does_not_repeat_what_the_pods_waited_for() -> None:
    text = "0/3 nodes are available: 3 Insufficient cpu."
    awaited = {"kind": "Node", "reason": "Unschedulable", "message": text, "replica": "worker-0"}
    message = f"the job did not start within 9 s: it waited for worker-0 (0 of 1 run): Unschedulable: {text}"
    failed = {"type": "Failed", "status": "True", "reason": "StartupDeadlineExceeded", "message": message}
    *_, deadline = explain(of({"phase": "Failed", "awaited": [awaited], "conditions": [failed]})).findings
    assert deadline.sentence.endswith("the job did not start in time: it waited for worker-0")


ONE_POD = "minCount (3) cannot be satisfied: 0 scheduled, 2 remaining"
OF_GROUP = f"pod group is unschedulable, {ONE_POD}, pod group preemption: No preemption victims found for incoming preemptor"
NO_CPU = "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 Insufficient cpu."


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([NO_CPU, OF_GROUP, OF_GROUP], ["CpuTaken", "GangWaits"], id="Kubernetes 1.37, one pod was tried"),
        pytest.param([OF_GROUP] * 3, ["GangWaits"], id="Kubernetes 1.37, no pod was tried"),
        pytest.param([f"{OF_GROUP}, first pod: {NO_CPU}"] * 3, ["CpuTaken", "GangWaits"], id="all in one message"),
        pytest.param(["pod group is not ready, 3 Pending, 3 minAvailable"] * 3, ["GangWaits"], id="Volcano"),
        pytest.param([f"rejected: gang: {NO_CPU}"] * 3, ["CpuTaken", "GangWaits"], id="coscheduling"),
    ],
)
def test_a_waiting_gang_says_nothing_twice(messages: list[str], expected: list[str]) -> None:
    reasons = dict.fromkeys(brief(Source.SCHEDULING, "Unschedulable", each) for each in messages)
    gang = {"gangScheduler": "scheduling.k8s.io", "conditions": [{"type": "GangScheduled", "status": "False"}]}
    message = f"waiting for nodes for 3 pods at once (PodGroup digits of scheduling.k8s.io): {'; '.join(reasons)}"
    pods = [pod(index, status=unscheduled(each)) for index, each in enumerate(messages)]
    explanation = explain(of({"phase": "Pending", "message": message, **gang}, *pods))
    assert [each.cause.id for each in explanation.findings] == expected
    text = str(explanation).lower()
    assert [each for each in ("enough free cpu", "all pods together", "wait for nodes") if text.count(each) > 1] == []
    assert "podgroup digits of scheduling.k8s.io" in text


def test_what_a_gang_waits_for_is_in_the_explanation_if_its_pods_cannot_be_read() -> None:
    gang = {**GANG, "gangScheduler": "scheduling.k8s.io", "conditions": [{"type": "GangScheduled", "status": "False"}]}
    [finding] = explain(of(gang, unreadable=("pods",))).findings
    assert "no free CPU" in finding.sentence
