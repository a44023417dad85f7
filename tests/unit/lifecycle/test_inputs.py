"""Inputs in the status: what the fetchers report becomes figures, the message, the deadline and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import InputStatus
from muster.lifecycle.observed import ReplicaView
from muster_contract.inputs import InputProgress
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, ended_with, job, replica, running

GB = 10**9
SOURCE = "hf://org/tiny"


def story(workers: int = 2, **spec: Any) -> Story:
    begun = Story(job(workers=workers, inputs=[{"name": "base", "source": SOURCE}], **spec))
    begun.see(seconds=0)
    return begun


def fetching(label: str, gigabytes: float, *, phase: str = "Fetching", revision: str = "c1", **changes: Any) -> ReplicaView:
    progress = InputProgress("base", phase, revision, int(gigabytes * GB), 8 * GB)
    return replica(label, phase="Pending", node="n1", inputs=(progress,), **changes)


def only(begun: Story) -> InputStatus:
    [found] = begun.status.inputs
    return found


def test_figures_are_of_the_slowest_replica_and_the_message_names_the_input() -> None:
    begun = story()
    begun.see(fetching("worker-0", 3.1), fetching("worker-1", 5), seconds=5)
    found = only(begun)
    assert (found.phase, found.bytes, found.total_bytes, found.ready, found.replicas) == ("Fetching", int(3.1 * GB), 8 * GB, 0, 2)
    assert (found.source, found.revision, found.updated_at) == (SOURCE, "c1", at(5))
    begun.see(fetching("worker-0", 3.1), replica("worker-1"), seconds=20)
    assert only(begun).ready == 1
    assert absent(begun.status.message, "input base", "3.1 GB", "8.0 GB", "1 of 2") == []
    begun.see(*running(), seconds=30)
    found = only(begun)
    assert (found.phase, found.bytes, found.ready) == ("Ready", 8 * GB, 2)
    assert begun.status.phase == "Running"


def test_bytes_alone_are_written_every_ten_seconds() -> None:
    begun = story(1)
    begun.see(fetching("worker-0", 1), seconds=5)
    decision = begun.see(fetching("worker-0", 2), seconds=8)
    assert (only(begun).bytes, decision.wake) == (GB, at(15))
    begun.see(fetching("worker-0", 3), seconds=15)
    assert only(begun).bytes == 3 * GB
    begun.see(fetching("worker-0", 8, phase="Ready"), seconds=16)
    assert only(begun).ready == 1


def test_the_first_revision_counts_for_all_replicas_and_for_later_attempts() -> None:
    begun = story()
    begun.see(fetching("worker-0", 0, phase="Waiting"), fetching("worker-1", 0, phase="Waiting", revision="c2"), seconds=5)
    assert (only(begun).phase, only(begun).revision) == ("Waiting", "c1")
    begun.see(fetching("worker-0", 0, phase="Waiting"), fetching("worker-1", 0, revision="c1"), seconds=6)
    begun.see(*running(), seconds=10)
    begun.see(replica("worker-0"), replica("worker-1", phase="Failed", finished=at(20), exit_code=1), seconds=20)
    begun.see(fetching("worker-0", 1, attempt=1, revision=""), fetching("worker-1", 1, attempt=1, revision=""), seconds=400)
    assert only(begun).revision == "c1"


def test_the_startup_deadline_counts_from_the_last_progress() -> None:
    begun = story(1, startupDeadlineSeconds=60)
    begun.see(fetching("worker-0", 1), seconds=50)
    begun.see(fetching("worker-0", 2), seconds=100)
    assert begun.status.phase == "Pending"
    begun.see(fetching("worker-0", 2), seconds=161)
    assert begun.condition("Failed") == ("True", "StartupDeadlineExceeded")


def test_an_elastic_job_waits_for_replicas_that_fetch() -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 30}
    begun = story(elastic=elastic, batch={"globalSize": 64})
    for seconds, done in ((20, 1), (40, 2), (60, 3)):
        decision = begun.see(replica("worker-0"), fetching("worker-1", done), seconds=seconds)
        assert created(decision) == []
        assert begun.status.attempt == 0


def fetch_failed(code: int, message: str) -> ReplicaView:
    return replica(
        "worker-0", phase="Failed", finished=at(10), exit_code=code, termination=ended_with(code, message, attempt=0), fetch_failed=True
    )


@pytest.mark.parametrize(
    ("code", "reason", "recorded", "ends"),
    [
        (33, "InputNotFound", "InputNotFound", True),
        (33, "InputForbidden", "InputForbidden", True),
        (33, "InputRefused", "InputRefused", True),
        (32, "InputDiskFull", "InputDiskFull", False),
        (32, "InputNotFound", "InputUnavailable", False),  # not a reason of this code
        (33, "Completed", "InputRefused", True),
    ],
)
def test_the_fetcher_says_in_one_word_why_an_input_is_missing(code: int, reason: str, recorded: str, ends: bool) -> None:
    begun = story(1)
    failed = fetch_failed(code, "input base: is missing")
    assert failed.termination is not None
    begun.see(replace(failed, termination=replace(failed.termination, reason=reason)), seconds=10)
    [record, *_] = begun.status.attempts
    assert record.reason == recorded
    assert (begun.status.phase == "Failed") == ends


def test_an_unreachable_source_is_tried_again_and_a_missing_one_is_not() -> None:
    for trainer in ({"task": "digits"}, {"command": ["train"], "supervisor": "Disabled"}):
        begun = story(1, trainer=trainer)
        begun.see(fetch_failed(32, "input base: the hub cannot be reached"), seconds=10)
        record = begun.status.attempts[0]
        assert (record.reason, record.failure_class, only(begun).ready) == ("InputUnavailable", "Infrastructure", 0)
        assert begun.status.phase == "Recovering"
        begun = story(1, trainer=trainer)
        begun.see(fetch_failed(33, "input base: model org/tiny does not exist"), seconds=10)
        assert begun.condition("Failed") == ("True", "InputRefused")


def test_inputs_of_other_roles_do_not_count() -> None:
    begun = Story(job(inputs=[{"name": "base", "source": SOURCE, "roles": ["worker"]}], strategy="ParameterServer"))
    begun.see(seconds=0)
    begun.see(fetching("worker-0", 1), seconds=5)
    assert only(begun).replicas == len([member for member in begun.status.world.members if member.role == "worker"])
