"""Evidence that no text contains: states, ages, and comparisons. The evidence is of Source.STATE. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from muster.api.constants import CONTROLLER, JOB_NAME_LABEL, MULTIKUEUE
from muster.api.spec import EVALUATOR, TrainingJobSpec
from muster.api.status import FINAL_PHASES, LIMIT_REASONS, members_in
from muster.api.unchecked import items, mappings
from muster.explain.copies import evidence_of_copies, has_no_copy, is_copied
from muster.explain.evidence import (
    Evidence,
    Source,
    claim_named,
    claims_of,
    condition_of,
    events_by_uid,
    is_pending,
    is_running,
    label_of,
    phase_of,
    status_of,
    time_of,
)
from muster.explain.nodes import offered_by, requests_of
from muster.explain.snapshot import Object, Snapshot
from muster_contract.environment import NAMES
from muster_contract.inputs import amount as shown_bytes

OPERATOR_SECONDS = 20.0
NEGLECT_SECONDS = 30.0
SCHEDULER_SECONDS = 20.0
PULL_SECONDS = 30.0
REPORT_SECONDS = 120.0
FIRST_STEP_SECONDS = 120.0
STUCK_SECONDS = 30.0
_LOST_NAMED = 3
SHARE = 0.15  # a larger share of a job's time counts as a problem


def evidence_of_states(snapshot: Snapshot) -> list[Evidence]:
    """The evidence of each entry of `_STATES`. Between two copies to other clusters, the status does not say what the job does."""
    states = (_deletion, _suspension, evidence_of_copies) if has_no_copy(snapshot) else _STATES
    return [evidence for state in states for evidence in state(snapshot)]


def _deletion(snapshot: Snapshot) -> Iterator[Evidence]:
    metadata = snapshot.job["metadata"]
    if metadata.get("deletionTimestamp"):
        finalizers = ", ".join(metadata.get("finalizers") or ())
        yield _state("BeingDeleted", f": finalizers keep it: {finalizers}" if finalizers else "")


def _controller(snapshot: Snapshot) -> Iterator[Evidence]:
    managed_by = snapshot.job["spec"].get("managedBy") or CONTROLLER
    if managed_by not in (CONTROLLER, MULTIKUEUE) and not snapshot.job.get("status"):
        yield _state("ManagedByOther", str(managed_by))


def _definition(snapshot: Snapshot) -> Iterator[Evidence]:
    if snapshot.spec_fields is None or phase_of(snapshot.job) in ("Running", "Succeeded"):
        return
    ours = {field.alias or name for name, field in TrainingJobSpec.model_fields.items()}
    if absent := sorted(ours - snapshot.spec_fields):
        yield _state("DefinitionOld", ", ".join(f"spec.{name}" for name in absent))


def _operator(snapshot: Snapshot) -> Iterator[Evidence]:
    """Whether the operator has read the newest spec. Each change of the spec makes it write status.observedGeneration."""
    job, status = snapshot.job, status_of(snapshot.job)
    generation, observed = job["metadata"].get("generation", 1), status.get("observedGeneration")
    if (job["spec"].get("managedBy") or CONTROLLER) != CONTROLLER or phase_of(job) in FINAL_PHASES:
        return
    if observed == generation:
        if neglect := _neglect(snapshot):
            yield _state("OperatorDown", neglect)
        return
    changed = max(_writes(job, of_status=False), default=time_of(job["metadata"].get("creationTimestamp")))
    seconds = (snapshot.now - changed).total_seconds() if changed else 0.0
    if seconds > OPERATOR_SECONDS:
        detail = "it has never had a status" if observed is None else f"its spec is of generation {generation}, its status of {observed}"
        yield _state("OperatorDown", f"{detail}, after {_duration(seconds)}")


def _neglect(snapshot: Snapshot) -> str:
    return neglected(snapshot.job, None if "pods" in snapshot.unreadable else snapshot.pods, snapshot.now)


def neglected(job: Object, pods: Sequence[Object] | None, now: datetime) -> str:
    """How long no operator has updated this job, in words, if its pods contradict its status. Otherwise an empty text. `pods` is None if
    the user may not read them.

    The operator writes the status within a second when a pod is lost. It writes nothing while nothing happens, so the age of a status
    alone proves nothing. The Lease of the operator would prove more, but few users may read it.
    """
    status = status_of(job)
    if pods is None or is_copied(job) or not is_silent(job, now):  # the pods of a copy are in its cluster
        return ""
    written = max(_writes(job, of_status=True))
    living = {str(pod["metadata"]["uid"]) for pod in pods if not pod["metadata"].get("deletionTimestamp") and not _has_ended(pod)}
    members = members_in(status.get("world") or {})
    lost = [f"{each['role']}-{each['index']}" for each in members if _counts(each) and str(each["uid"]) not in living]
    if not lost:
        return ""
    more = f" and {len(lost) - _LOST_NAMED} more" if len(lost) > _LOST_NAMED else ""
    verb = "are" if len(lost) > 1 else "is"
    named = ", ".join(lost[:_LOST_NAMED])
    return f"no operator has updated this job for {_duration((now - written).total_seconds())}, although {named}{more} {verb} gone"


def is_silent(job: Object, now: datetime) -> bool:
    """Whether the job trains according to its status, which was not written for some time. If an attempt has ended, its pods may save for
    minutes."""
    status, written = status_of(job), max(_writes(job, of_status=True), default=None)
    is_open = status.get("phase") == "Running" and not ((status.get("attempts") or [{}])[-1].get("endTime") or job["spec"].get("suspend"))
    return is_open and written is not None and (now - written).total_seconds() >= NEGLECT_SECONDS


def _counts(member: Object) -> bool:
    """Whether the operator acts at once if the pod of this member is lost."""
    return bool(member.get("uid")) and not member.get("succeeded") and member.get("role") != EVALUATOR


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _writes(job: Object, *, of_status: bool) -> list[datetime]:
    """The times of the last writes of the status, or of the rest of the job."""
    entries = [each for each in job["metadata"].get("managedFields") or () if (each.get("subresource") == "status") is of_status]
    return [time for each in entries if (time := time_of(each.get("time")))]


def _suspension(snapshot: Snapshot) -> Iterator[Evidence]:
    if phase_of(snapshot.job) in FINAL_PHASES:
        return
    if snapshot.job["spec"].get("suspend"):
        running = any(is_running(pod) for pod in snapshot.pods)
        name = str(snapshot.job["metadata"]["name"])
        yield _state("Suspending") if running else _state("Suspended", subject=name)
        return
    for _, each in mappings(items(status_of(snapshot.job).get("conditions"))):
        if each.get("type") == "Suspended" and each.get("status") == "True" and each.get("reason") in LIMIT_REASONS:
            yield _state("HeldByLimit", str(each.get("message") or ""))


def _scheduler(snapshot: Snapshot) -> Iterator[Evidence]:
    if phase_of(snapshot.job) in FINAL_PHASES or _lacks_members(snapshot):
        return
    for pod in snapshot.pods:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        seconds = _age(pod, snapshot)
        is_placed = pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates")
        if is_placed or conditions or seconds < SCHEDULER_SECONDS or not is_pending(pod):
            continue
        name = pod["spec"].get("schedulerName") or "default-scheduler"
        yield _state("SchedulerAbsent", f"{name} has done nothing for {_duration(seconds)}", label_of(pod))
        return


def _lacks_members(snapshot: Snapshot) -> bool:
    """Whether a gang has fewer pods than its world. Its scheduler does not look at them before all exist, and what prevents the others,
    such as a quota, is a cause of its own."""
    status = status_of(snapshot.job)
    desired = sum(int(each.get("desired") or 0) for each in status.get("roles") or ())
    return bool(status.get("gangScheduler")) and len(snapshot.pods) < desired


def _size(snapshot: Snapshot) -> Iterator[Evidence]:
    """A pod that requests more of a resource than any node has."""
    if not snapshot.nodes:
        return
    for pod in snapshot.pods:
        if pod["spec"].get("nodeName") or not is_pending(pod):
            continue
        for resource, requested in sorted(requests_of(pod).items()):
            largest = max((offered_by(node, resource) for node in snapshot.nodes), default=0.0)
            if 0 < largest < requested:
                message = f"{label_of(pod)} requests {_amount(requested)} of {resource}, and the largest node has {_amount(largest)}"
                yield _state("NeverFits", message, label_of(pod))
                return


def _claims(snapshot: Snapshot) -> Iterator[Evidence]:
    """Claims that the pods mount and that are missing, lost or not bound."""
    if snapshot.claims is None or phase_of(snapshot.job) in (*FINAL_PHASES, "Running", "Suspended"):
        return
    for name in claims_of(snapshot):
        claim = claim_named(snapshot, name)
        phase = ((claim or {}).get("status") or {}).get("phase")
        if claim is None:
            yield _state("ClaimNotFound", f"there is no claim {name} in this namespace", name)
        elif phase == "Lost":
            yield _state("ClaimLost", name, name)
        elif phase == "Pending" and _unscheduled(snapshot):
            yield _state("ClaimPending", name, name)


def _unscheduled(snapshot: Snapshot) -> bool:
    return any(not pod["spec"].get("nodeName") for pod in snapshot.pods)


def _pulls(snapshot: Snapshot) -> Iterator[Evidence]:
    pods, events = {str(pod["metadata"]["uid"]): pod for pod in snapshot.pods}, events_by_uid(snapshot)
    over = {uid for uid, about in events.items() if any(each.get("reason") in ("Pulled", "Failed") for each in about)}
    for event in snapshot.events:
        uid = str((event.get("involvedObject") or {}).get("uid"))
        pod, began = pods.get(uid), time_of(event.get("firstTimestamp") or event.get("eventTime"))
        if event.get("reason") != "Pulling" or pod is None or not is_pending(pod) or began is None or uid in over:
            continue
        seconds = (snapshot.now - began).total_seconds()
        if seconds > PULL_SECONDS:
            yield _state("ImagePulling", f"{event.get('message')}, for {_duration(seconds)}", label_of(pod))


def _stuck(snapshot: Snapshot) -> Iterator[Evidence]:
    for pod in snapshot.pods:
        due = time_of(pod["metadata"].get("deletionTimestamp"))
        if due is not None and snapshot.now > due + timedelta(seconds=STUCK_SECONDS):
            node, seconds = pod["spec"].get("nodeName") or "no node", (snapshot.now - due).total_seconds()
            yield _state("StuckTerminating", f"its grace period ended {_duration(seconds)} ago, on {node}", label_of(pod))


def _nodes(snapshot: Snapshot) -> Iterator[Evidence]:
    nodes = {node["metadata"]["name"]: node for node in snapshot.nodes or ()}
    for pod in snapshot.pods:
        node = nodes.get(pod["spec"].get("nodeName") or "")
        conditions = (node or {}).get("status", {}).get("conditions") or ()
        ready = next((each for each in conditions if each.get("type") == "Ready"), None)
        if ready is not None and ready.get("status") != "True" and phase_of(snapshot.job) not in FINAL_PHASES:
            yield _state("NodeNotReady", f"{pod['spec']['nodeName']}: {ready.get('message') or ready.get('reason')}", label_of(pod))


def _silence(snapshot: Snapshot) -> Iterator[Evidence]:
    status = status_of(snapshot.job)
    world, progress = status.get("world") or {}, status.get("progress") or {}
    if status.get("phase") != "Running":
        return
    ready, reported = time_of(world.get("readyTime")), time_of(progress.get("updatedAt"))
    first = time_of(world.get("firstStepTime"))
    if first is None and ready is not None and (waited := (snapshot.now - ready).total_seconds()) > FIRST_STEP_SECONDS:
        yield _state("NoFirstStep", _duration(waited))
    elif first is not None and reported is not None and (silent := (snapshot.now - reported).total_seconds()) > REPORT_SECONDS:
        yield _state("ReportsStopped", _duration(silent))


def _time_lost(snapshot: Snapshot) -> Iterator[Evidence]:
    goodput = status_of(snapshot.job).get("goodput") or {}
    total = sum(float(value) for name, value in goodput.items() if name.endswith("Seconds") and name != "suspendedSeconds")
    if total < 60:
        return
    saves = float(goodput.get("checkpointSeconds") or 0) / total
    restarts = (float(goodput.get("recoveringSeconds") or 0) + float(goodput.get("redoneSeconds") or 0)) / total
    if saves > SHARE:
        yield _state("SavesBlock", f"{saves:.0%}")
    if restarts > SHARE:
        yield _state("TimeLost", f"{restarts:.0%}")


def _workers(snapshot: Snapshot) -> Iterator[Evidence]:
    spec, status = snapshot.job["spec"], status_of(snapshot.job)
    roles = spec.get("roles") or {"worker": {}}  # an elastic job has one role
    desired = sum((role or {}).get("replicas", 1) for role in roles.values())
    members = members_in(status.get("world") or {})
    if spec.get("elastic") and status.get("phase") == "Running" and len(members) < desired:
        yield _state("FewerWorkers", f"{len(members)} of {desired}")


def _phase(snapshot: Snapshot) -> Iterator[Evidence]:
    status, phase = status_of(snapshot.job), phase_of(snapshot.job)
    progress = status.get("progress") or {}
    at = f": step {progress['step']}" if progress.get("step") else ""
    of = f" of {progress['totalSteps']}" if at and progress.get("totalSteps") else ""
    next_attempt = time_of(status.get("nextAttemptTime"))
    complete = str(condition_of(snapshot.job, "Complete").get("reason"))
    if _neglect(snapshot):
        return  # what the status says is out of date
    if phase in ("Running", "Succeeded"):
        yield _state(complete if complete == "CompletedWithoutReport" else phase, at + of + _earlier_job(status))
    elif next_attempt is not None and next_attempt > snapshot.now:
        yield _state("HeldBack", f"{next_attempt:%H:%M:%S} UTC")
    elif phase not in FINAL_PHASES and not snapshot.job["spec"].get("suspend"):
        yield from _inputs(status)
        placed = [pod for pod in snapshot.pods if is_pending(pod) and pod["spec"].get("nodeName")]
        if placed:
            yield _state("ContainersStart", ", ".join(label_of(pod) for pod in placed[:3]) + (" and others" if len(placed) > 3 else ""))
        yield _state("Starting", _gang(snapshot) or str(status.get("message") or "the operator has not processed it yet"))


def _gang(snapshot: Snapshot) -> str:
    """What a gang without nodes waits for. The message of its status repeats the reasons that its pods give."""
    status, name = status_of(snapshot.job), snapshot.job["metadata"]["name"]
    if not snapshot.pods or condition_of(snapshot.job, "GangScheduled").get("status") != "False":
        return ""
    return f"they wait for nodes (PodGroup {name} of {status.get('gangScheduler')})"


def _earlier_job(status: dict[str, Any]) -> str:
    """That the first attempt of the job resumed from a commit, which an earlier job must have saved."""
    first: dict[str, Any] = next((each for each in status.get("attempts") or () if each.get("attempt") == 0), {})
    began = f"it began at step {first.get('stepResumed')}, from a commit of an earlier job with the same checkpoint folder"
    return f" ({began})" if first.get("stepResumed") else ""


def _queue(snapshot: Snapshot) -> Iterator[Evidence]:
    queue = status_of(snapshot.job).get("queue")
    if not queue:
        return
    since = time_of(queue.get("since"))
    waited = f", since {_duration((snapshot.now - since).total_seconds())}" if since else ""
    of_cluster_queue = f" and {queue['clusterQueuePosition']} in its ClusterQueue" if queue.get("clusterQueuePosition") else ""
    position = f" at position {queue['position']}{of_cluster_queue}" if queue.get("position") else ""
    yield _state("InQueue", f"queue {queue.get('name')}{position}{waited}")


def _inputs(status: dict[str, Any]) -> Iterator[Evidence]:
    """The first input that replicas fetch."""
    for each in status.get("inputs") or ():
        if each.get("phase") == "Fetching":
            total = f" of {shown_bytes(int(each['totalBytes']))}" if each.get("totalBytes") is not None else ""
            done = f"{shown_bytes(int(each.get('bytes') or 0))}{total} on the slowest replica"
            replicas = f"{each.get('ready', 0)} of {each.get('replicas', 0)} replicas have it"
            yield _state("InputsFetched", f"{done}, and {replicas}", f"input {each.get('name')}")
            return


def _policies(snapshot: Snapshot) -> Iterator[Evidence]:
    """Policies of other owners that select the job's pods."""
    name = snapshot.job["metadata"]["name"]
    labels = {JOB_NAME_LABEL: name} | ((snapshot.pods[0]["metadata"].get("labels") or {}) if snapshot.pods else {})
    for policy in snapshot.policies or ():
        selector = (policy.get("spec") or {}).get("podSelector") or {}
        match_labels = selector.get("matchLabels") or {}
        is_own = policy["metadata"]["name"] == name and JOB_NAME_LABEL in match_labels
        if not is_own and not selector.get("matchExpressions") and match_labels.items() <= labels.items():
            yield _state("PolicyMayBlock", str(policy["metadata"]["name"]))


def _avoided(snapshot: Snapshot) -> Iterator[Evidence]:
    for node in status_of(snapshot.job).get("avoidedNodes") or ():
        yield _state("NodeAvoided", str(node.get("name")))


def _storage(snapshot: Snapshot) -> Iterator[Evidence]:
    """Whether the pods mount storage. The chart may give storage to jobs that name none."""
    has_own = bool((snapshot.job["spec"].get("checkpoint") or {}).get("storage"))
    containers = [each for pod in snapshot.pods for each in pod["spec"].get("containers") or ()]
    variables = {variable.get("name") for each in containers for variable in each.get("env") or ()}
    gets_storage = has_own or NAMES["checkpoint_dir"] in variables or claims_of(snapshot)
    if snapshot.pods and not gets_storage and phase_of(snapshot.job) not in FINAL_PHASES:
        yield _state("NoStorage")


_STATES: tuple[Callable[[Snapshot], Iterator[Evidence]], ...] = (
    _deletion,
    _controller,
    _definition,
    _operator,
    _suspension,
    _scheduler,
    _size,
    _claims,
    _pulls,
    _stuck,
    _nodes,
    _silence,
    _time_lost,
    _workers,
    _queue,
    evidence_of_copies,
    _phase,
    _policies,
    _avoided,
    _storage,
)


def _state(reason: str, message: str = "", subject: str = "") -> Evidence:
    return Evidence(Source.STATE, reason, message, subject)


def _age(obj: Object, snapshot: Snapshot) -> float:
    created = time_of(obj["metadata"].get("creationTimestamp"))
    return (snapshot.now - created).total_seconds() if created else 0.0


def _amount(number: float) -> str:
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:g}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
