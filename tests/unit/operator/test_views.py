"""The views of pods that the lifecycle core gets, for pods as kubelets and controllers write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.operator.gateway import child_in, children_of
from muster.operator.views import child_of
from muster.render.pods import MOST_EXCLUDED

LABELS = {"muster.dev/job-name": "digits", "muster.dev/role": "worker", "muster.dev/index": "1", "muster.dev/attempt": "2"}


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    named = {"name": "digits-worker-1", "namespace": "default", "uid": "u", "resourceVersion": "7", "labels": LABELS}
    return {
        "metadata": {**named, "creationTimestamp": "2026-11-21T12:00:00Z", **metadata},
        "spec": {"nodeName": "n", "containers": [{"name": "side-car"}, {"name": "trainer"}]},
        "status": status or {},
    }


def trainer(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "side-car", "state": {"running": {}}}, {"name": "trainer", "state": state}]}


def view(status: dict[str, Any] | None = None, **metadata: Any) -> ReplicaView:
    child = child_of(pod(status, **metadata))
    assert child
    assert (child.key, child.version) == ("default/digits", 7)
    return child.view


def test_a_listed_pod_is_read_again_only_if_its_version_has_changed() -> None:
    running = pod(trainer(running={"startedAt": "2026-11-21T12:00:00Z"}))
    cached = {"u": child_in(running)}
    assert children_of([running], cached)[0] is cached["u"]
    assert children_of([running], {})[0] == cached["u"]
    ended = pod(trainer(terminated={"exitCode": 1}), resourceVersion="8")
    assert children_of([ended], cached)[0].view.phase is ReplicaPhase.FAILED


def test_a_pod_that_does_not_run_yet_is_read_again() -> None:
    """The answer to its creation has only metadata."""
    created = {"u": child_in({"metadata": pod()["metadata"]})}
    assert (created["u"].view.node, children_of([pod()], created)[0].view.node) == ("", "n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"muster.dev/role": "Boss"},
        {"muster.dev/role": "a-role-too-long"},
        {"muster.dev/index": "-1"},
        {"muster.dev/attempt": "x"},
        {"muster.dev/job-name": ""},
        {"muster.dev/attempt": "9" * 60},
        {"muster.dev/index": "9" * 10},
    ],
)
def test_a_pod_with_invalid_labels_is_no_replica(wrong: dict[str, str]) -> None:
    assert child_of(pod(labels={**LABELS, **wrong})) is None
    assert child_of(pod(labels=None)) is None


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_forged_times_of_a_pod_allow_sums(time: str) -> None:
    hour = timedelta(hours=1)
    ended = view(trainer(terminated={"exitCode": 1, "finishedAt": time}), deletionTimestamp=time)
    assert all(moment is not None and moment - hour < moment + hour for moment in (ended.finished, ended.due, ended.deleting))


def test_only_the_trainer_container_counts() -> None:
    assert view(trainer(running={"startedAt": "2026-11-21T12:00:05Z"})).phase is ReplicaPhase.RUNNING
    assert view({"phase": "Running", **trainer(waiting={"reason": "ContainerCreating"})}).phase is ReplicaPhase.PENDING
    done = view({"phase": "Running", **trainer(terminated={"exitCode": 0, "finishedAt": "2026-11-21T12:00:09Z"})})
    assert done.phase is ReplicaPhase.SUCCEEDED
    assert done.finished is not None


def test_a_pod_is_empty_once_all_its_containers_have_ended() -> None:
    ended, runs = {"terminated": {"exitCode": 137}}, {"running": {"startedAt": "2026-11-21T12:00:05Z"}}
    both = {"containerStatuses": [{"name": "side-car", "state": ended}, {"name": "trainer", "state": ended}]}
    assert view({"phase": "Running", **both}).empty
    assert view({**both, "initContainerStatuses": [{"name": "before", "state": ended}]}).empty
    assert not view({**both, "initContainerStatuses": [{"name": "side-car", "state": runs}]}).empty
    assert not view({**both, "ephemeralContainerStatuses": [{"name": "debugger", "state": runs}]}).empty
    assert not view(trainer(**ended)).empty
    assert not view({"containerStatuses": [{"name": "trainer", "state": ended}]}).empty
    assert not view({"phase": "Failed", "reason": "Evicted"}).empty


def test_a_pod_stays_while_a_side_car_outlives_the_trainer_container() -> None:
    ended, runs = {"terminated": {"exitCode": 0}}, {"running": {"startedAt": "2026-11-21T12:00:05Z"}}
    assert view({"phase": "Running", **trainer(**ended)}).side_car_runs
    assert not view({"phase": "Running", **trainer(running={})}).side_car_runs
    waits = {"containerStatuses": [{"name": "side-car", "state": {"waiting": {}}}, {"name": "trainer", "state": ended}]}
    assert view({"phase": "Running", **waits}).side_car_runs
    both = {"containerStatuses": [{"name": "side-car", "state": ended}, {"name": "trainer", "state": ended}]}
    assert not view({"phase": "Running", **both, "initContainerStatuses": [{"name": "native", "state": runs}]}).side_car_runs
    assert not view({"phase": "Succeeded", **both}).side_car_runs
    assert not view({"phase": "Failed", "reason": "Evicted"}).side_car_runs


def test_a_pod_closes_while_only_side_cars_among_its_init_containers_run() -> None:
    ended, runs = {"terminated": {"exitCode": 0}}, {"running": {"startedAt": "2026-11-21T12:00:05Z"}}
    both = {"containerStatuses": [{"name": "side-car", "state": ended}, {"name": "trainer", "state": ended}]}
    closing = view({"phase": "Running", **both, "initContainerStatuses": [{"name": "native", "state": runs}]})
    assert (closing.closing, closing.only_side_cars_run) == (True, True)
    assert not view({"phase": "Running", **both, "initContainerStatuses": [{"name": "native", "state": ended}]}).closing
    assert not view({"phase": "Running", **trainer(**ended), "initContainerStatuses": [{"name": "native", "state": runs}]}).closing


def test_a_pod_that_never_started_has_failed_if_its_phase_is_failed() -> None:
    evicted = view({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."})
    assert (evicted.phase, evicted.reason, evicted.exit_code) == (ReplicaPhase.FAILED, "Evicted", None)
    assert "low on resource" in evicted.message


def test_a_termination_message_is_read_from_the_termination_message() -> None:
    words = {"code": 20, "reason": "PeerLost", "message": "gone", "step": 7}
    reported = view(trainer(terminated={"exitCode": 20, "message": json.dumps(words)}))
    assert reported.termination is not None
    assert (reported.termination.code, reported.termination.step) == (20, 7)
    plain = view(trainer(terminated={"exitCode": 1, "message": "Segmentation fault"}))
    assert (plain.termination, plain.message) == (None, "Segmentation fault")
    log = "".join(f"step {step}\n" for step in range(200)) + "Traceback:\n  at line 3\nValueError: no\n\n"
    assert view(trainer(terminated={"exitCode": 1, "message": log})).message == "Traceback: | at line 3 | ValueError: no"


def test_the_reason_why_a_pod_is_pending_is_read_unless_it_is_common() -> None:
    assert view(trainer(waiting={"reason": "ImagePullBackOff", "message": "m"})).reason == "ImagePullBackOff"
    assert view(trainer(waiting={"reason": "ContainerCreating"})).reason == ""
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert view({"phase": "Pending", "conditions": [unscheduled]}).message == "0/3 nodes"
    init = {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]}
    assert view(init).reason == "ErrImagePull"


@pytest.mark.parametrize(("container", "reason"), [("fetch-data", "InitContainerFailed"), ("muster-supervisor", "SupervisorNotCopied")])
def test_a_failed_init_container_is_the_reason_of_its_pod(container: str, reason: str) -> None:
    ended = {"exitCode": 3, "reason": "Error"}
    failed = view({"phase": "Failed", "initContainerStatuses": [{"name": container, "state": {"terminated": ended}}]})
    assert (failed.phase, failed.reason) == (ReplicaPhase.FAILED, reason)
    assert container in failed.message


@pytest.mark.parametrize(
    ("condition", "status", "node", "unschedulable", "placed"),
    [
        ({"status": "False", "reason": "Unschedulable"}, {}, "", True, None),
        ({"status": "False", "reason": "Unschedulable"}, {"nominatedNodeName": "node-0"}, "", False, None),
        ({"status": "False", "reason": "SchedulerError"}, {}, "", False, None),
        ({"status": "True"}, {}, "node-0", False, datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)),
    ],
    ids=["no node", "a node is expected", "tries again", "bound"],
)
def test_it_is_read_whether_and_when_a_pod_got_a_node(
    condition: dict[str, str], status: dict[str, str], node: str, unschedulable: bool, placed: datetime | None
) -> None:
    scheduled = {"type": "PodScheduled", "lastTransitionTime": "2026-11-21T12:00:03Z", **condition}
    child = child_of({**pod({"phase": "Pending", "conditions": [scheduled], **status}), "spec": {"containers": [], "nodeName": node}})
    assert child is not None
    assert (child.view.unschedulable, child.view.placed) == (unschedulable, placed)


def test_the_reason_why_a_pod_is_pending_is_explained_briefly() -> None:
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Too many pods.",
    }
    waits = child_of({**pod({"phase": "Pending", "conditions": [unscheduled]}), "spec": {"containers": [{"name": "trainer"}]}})
    assert waits is not None
    assert waits.view.waits_for.startswith("Unschedulable: ")
    pulls = [
        view(trainer(waiting={"reason": reason, "message": 'image "a:1": not found'})) for reason in ("ErrImagePull", "ImagePullBackOff")
    ]
    assert [each.waits_for for each in pulls] == ["ImagePullBackOff: the image does not exist: a:1"] * 2
    assert view(trainer(waiting={"reason": "SomethingNew", "message": "m"})).waits_for == ""
    assert view(trainer(waiting={"reason": "ContainerCreating"})).waits_for == ""
    assert view(trainer(running={})).waits_for == ""


@pytest.mark.parametrize(
    ("message", "only_of_gang"),
    [
        ("pod group is unschedulable, minCount (3) cannot be satisfied: 0 scheduled, 2 remaining", True),
        ("pod group is not ready, 3 Pending, 3 minAvailable", True),
        ("rejected: gang: 0/3 nodes are available: 3 Insufficient cpu.", False),
        ("0/3 nodes are available: 3 Insufficient cpu.", False),
        ("something new", False),
    ],
)
def test_a_pod_that_waits_only_for_its_gang_is_recognised(message: str, only_of_gang: bool) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    waits = child_of({**pod({"phase": "Pending", "conditions": [unscheduled]}), "spec": {"containers": [{"name": "trainer"}]}})
    assert waits is not None
    assert waits.view.waits_for_gang == only_of_gang


def test_disruption_deletion_and_lack_of_memory_are_read() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}
    assert view({"conditions": [target]}).disruption == "PreemptionByScheduler"
    assert view({"conditions": [{**target, "status": "False"}]}).disruption is None
    going = view(deletionTimestamp="2026-11-21T12:01:00Z", deletionGracePeriodSeconds=30)
    assert going.due is not None
    assert going.deleting is not None
    assert (going.due - going.deleting).total_seconds() == 30
    absurd = view(deletionTimestamp="2026-11-21T12:01:00Z", deletionGracePeriodSeconds=10**12, creationTimestamp="2026-11-21T12:00:00Z")
    assert absurd.deleting == datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    assert view(trainer(terminated={"exitCode": 137, "reason": "OOMKilled"})).oom_killed


def health(resource: str, *devices: tuple[str, str], **more: str) -> dict[str, Any]:
    return {"name": resource, "resources": [{"resourceID": name, "health": state, **more} for name, state in devices]}


def allocated(*resources: dict[str, Any], container: str = "trainer") -> dict[str, Any]:
    return {"containerStatuses": [{"name": container, "state": {"running": {}}, "allocatedResourcesStatus": list(resources)}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (allocated(health("nvidia.com/gpu", ("GPU-1", "Healthy"), ("GPU-2", "Unhealthy"))), ("nvidia.com/gpu GPU-2",)),
        (allocated(health("claim:gpus/gpu", ("d/p/gpu-3", "Unhealthy"), message="XID 79")), ("claim:gpus/gpu d/p/gpu-3 (XID 79)",)),
        (allocated(health("nvidia.com/gpu", ("GPU-1", "Unknown"))), ()),
        (allocated(health("nvidia.com/gpu", ("GPU-1", "Unhealthy")), container="proxy"), ()),
        (allocated({"name": "nvidia.com/gpu"}), ()),
        (allocated(health("a", *((f"d{n}", "Unhealthy") for n in range(9)))), ("a d0", "a d1", "a d2", "a d3")),
        (allocated(health("a", ("\x1b]0;owned\x07", "Unhealthy"))), ("a \\x1b]0;owned\\x07",)),
        (allocated(health("a", ("d" * 500, "Unhealthy"))), ("a " + "d" * 198,)),
    ],
)
def test_unhealthy_devices_of_the_trainer_are_read(status: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert view(status).unhealthy_devices == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, "taint"),
        (
            {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "digits-worker-0-gpus-x"}]},
            "taint (claim digits-worker-0-gpus-x)",
        ),
        (allocated(health("claim:gpus", ("d/p/1", "Healthy"), ("d/p/2", "Healthy"))), "taint (one of d/p/1, d/p/2)"),
        (allocated(health("claim:gpus", ("d/p/1", "Healthy"), ("d/p/2", "Unhealthy"))), "taint (claim:gpus d/p/2)"),
        (allocated(health("nvidia.com/gpu", ("GPU-1", "Healthy"))), "taint"),
    ],
)
def test_a_device_taint_names_the_device_as_far_as_the_pod_does(status: dict[str, Any], expected: str) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager", "message": "taint"}
    seen = view({**status, "conditions": [target]})
    assert (seen.disruption, seen.message) == ("DeletionByDeviceTaintManager", expected)


def test_text_of_a_container_is_escaped_and_on_one_line() -> None:
    forged = "boom \x1b]0;owned\x07\n2026-11-23 00:00:00,000 INFO muster.reconciler good/honest: Succeeded"
    words = view(
        trainer(terminated={"exitCode": 10, "message": json.dumps({"code": 10, "message": forged, "commit": {"step": 1, "path": forged}})})
    )
    assert words.termination is not None
    assert words.termination.message.startswith("boom \\x1b]0;owned\\x07\\n2026")
    plain = view(trainer(terminated={"exitCode": 1, "message": forged}))
    waits = view(trainer(waiting={"reason": "ImagePullBackOff\x1b", "message": forged}))
    commit = words.termination.commit
    texts = [words.termination.message, plain.message, waits.message, waits.reason, commit.path if commit else ""]
    assert all(text and text.isprintable() for text in texts)


@pytest.mark.parametrize("fields", [{"step": 10**30}, {"attempt": 10**12}, {"code": 10**6}, {"evaluation": {"metrics": {"a": 1e999}}}])
def test_termination_with_numbers_out_of_bounds_are_ignored(fields: dict[str, Any]) -> None:
    ended = view(trainer(terminated={"exitCode": 10, "message": json.dumps({"code": 10, "message": "boom", **fields})}))
    assert (ended.termination, ended.exit_code) == (None, 10)


def fetcher(code: int, message: str) -> dict[str, Any]:
    ended = {"exitCode": code, "finishedAt": "2026-11-21T12:00:09Z", "message": message}
    return {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "muster-inputs", "state": {"terminated": ended}}],
        **trainer(waiting={"reason": "PodInitializing"}),
    }


def test_the_end_of_a_failed_fetcher_is_that_of_its_replica() -> None:
    words = {"code": 33, "reason": "InputRefused", "message": "input base: model org/none does not exist", "attempt": 2}
    failed = view(fetcher(33, json.dumps(words)))
    assert (failed.phase, failed.exit_code, failed.fetch_failed, failed.side_car_runs) == (ReplicaPhase.FAILED, 33, True, False)
    assert failed.termination is not None
    assert failed.termination.message == words["message"]
    assert failed.finished == datetime(2026, 11, 21, 12, 0, 9, tzinfo=UTC)
    killed = view(fetcher(137, ""))
    assert (killed.phase, killed.fetch_failed, killed.termination) == (ReplicaPhase.FAILED, True, None)
    done = {**fetcher(0, ""), "phase": "Pending"}
    assert (view(done).phase, view(done).fetch_failed) == (ReplicaPhase.PENDING, False)


@pytest.mark.parametrize(
    ("hostname", "suffix"),
    [
        ("worker-1", None),
        ("worker-1-3", 3),
        ("worker-1-999", 999),
        ("worker-1-x", None),
        ("worker-1--3", None),
        ("worker-13", None),
        ("other", None),
        (None, None),
    ],
)
def test_the_suffix_of_a_pod_is_at_the_end_of_its_host_name(hostname: str | None, suffix: int | None) -> None:
    named = pod()
    named["spec"]["hostname"] = hostname
    child = child_of(named)
    assert child
    assert child.view.suffix == suffix


def test_a_pod_lists_the_nodes_that_it_excludes() -> None:
    assert view().excluded_nodes == ()
    assert view(annotations={"muster.dev/excluded-nodes": "node-0,node-1"}).excluded_nodes == ("node-0", "node-1")
    assert view(annotations={"muster.dev/excluded-nodes": ""}).excluded_nodes == ()


def test_what_a_pod_excludes_is_limited_because_users_may_write_it() -> None:
    longest = [f"{number:0253d}" for number in range(MOST_EXCLUDED)]  # as Muster writes it
    assert list(view(annotations={"muster.dev/excluded-nodes": ",".join(longest)}).excluded_nodes) == longest
    for forged in ("a," * 125_000, "," * 250_000, "a" * 250_000):
        nodes = view(annotations={"muster.dev/excluded-nodes": forged}).excluded_nodes
        assert (len(nodes) <= MOST_EXCLUDED, len(",".join(nodes)) < 20_000) == (True, True)


MEGABYTE = "\x1b" * (1 << 20)
LARGE: dict[str, dict[str, Any]] = {
    "a message": {"phase": "Failed", "message": MEGABYTE},
    "the end of a log": trainer(terminated={"exitCode": 1, "message": MEGABYTE}),
    "lines of a log": trainer(terminated={"exitCode": 1, "message": "\n" * (1 << 20)}),
    "termination message": trainer(terminated={"exitCode": 1, "message": json.dumps({"code": 10, "message": MEGABYTE})}),
    "a cause of waiting": trainer(waiting={"reason": "ImagePullBackOff", "message": MEGABYTE}),
    "devices": {
        "containerStatuses": [
            {
                "name": "trainer",
                "allocatedResourcesStatus": [{"name": "gpu", "resources": [{"resourceID": MEGABYTE[:99], "health": "Unhealthy"}] * 10_000}],
            }
        ]
    },
}


@pytest.mark.parametrize("status", LARGE.values(), ids=LARGE)
def test_a_status_of_a_megabyte_is_neither_kept_nor_escaped_whole(status: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    escaped = []

    def counted(character: str) -> str:
        escaped.append(character)
        return ascii(character)

    monkeypatch.setattr("muster_contract.text.ascii", counted, raising=False)
    seen = view(status)
    assert len(escaped) < 10_000  # to escape a megabyte takes a second, in which the operator does nothing else
    assert sum(len(str(value)) for value in vars(seen).values()) < 10_000


def test_reasons_in_the_status_of_a_pod_are_escaped_and_short() -> None:
    forged = "Evicted\x1b[2J" + "x" * 100_000
    target = {"type": "DisruptionTarget", "status": "True", "reason": forged, "message": "m"}
    seen = view({"phase": "Failed", "reason": forged, "conditions": [target]})
    for text in (seen.disruption, seen.reason):
        assert text is not None
        assert (text.startswith(r"Evicted\x1b[2J"), len(text) < 200) == (True, True)


def held(**spec: Any) -> tuple[tuple[str, int], ...]:
    child = child_of({**pod(), "spec": {"containers": [], **spec}})
    assert child
    return child.view.devices


def limited(**limits: Any) -> dict[str, Any]:
    names = {"gpu": "nvidia.com/gpu", "cpu": "cpu"}
    return {"name": "trainer", "resources": {"limits": {names[name]: count for name, count in limits.items()}}}


def test_a_pod_holds_its_accelerators_and_claims_or_else_itself() -> None:
    gpus, init = limited(gpu="4", cpu="8"), limited(gpu="6")
    assert held(containers=[gpus, limited(gpu=1)]) == (("nvidia.com/gpu", 5),)
    assert held(containers=[gpus], initContainers=[init]) == (("nvidia.com/gpu", 6),)
    assert held(containers=[gpus], initContainers=[{**init, "restartPolicy": "Always"}]) == (("nvidia.com/gpu", 10),)
    assert held(containers=[limited(cpu="8")], resourceClaims=[{"name": "a"}, {"name": "b"}]) == (("claim", 2),)
    assert held(containers=[limited(cpu="8", gpu="many")]) == (("pod", 1),)


def test_a_pod_releases_its_devices_when_its_last_container_has_ended() -> None:
    def ended(second: int) -> dict[str, Any]:
        return {"terminated": {"exitCode": 0, "finishedAt": f"2026-11-21T12:00:{second:02}Z"}}

    def states(*each: dict[str, Any]) -> dict[str, Any]:
        return {"containerStatuses": [{"name": name, "state": state} for name, state in zip(("trainer", "side-car"), each, strict=True)]}

    assert view(states(ended(30), {"running": {}})).released is None
    assert view(states(ended(30), ended(45))).released == datetime(2026, 11, 21, 12, 0, 45, tzinfo=UTC)
    evicted = {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "lastTransitionTime": "2026-11-21T12:01:00Z"}]}
    assert view(evicted).released == datetime(2026, 11, 21, 12, 1, tzinfo=UTC)
