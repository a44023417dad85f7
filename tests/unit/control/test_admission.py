"""Admission: every object of the API server becomes a job and a list of its problems."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.admission.job_policy import JobPolicy
from muster.api.status import Goodput, Phase, Progress, Restarts
from muster.control.admission import Admission, readable_status
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from tests.support.texts import absent

IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
GOOD = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}
BEGAN = "2026-11-21T12:00:00Z"
WORLD = {"attempt": 0, "size": 2, "createdTime": BEGAN}
RUNNING = {"phase": "Running", "admittedTime": BEGAN, "world": WORLD, "attempts": [{"attempt": 0, "startTime": BEGAN}]}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def admission() -> Admission:
    return Admission(IMAGES, JobDefaults())


def obj(spec: Any, *, generation: int = 1, status: Any = None) -> dict[str, Any]:
    metadata = {"name": "digits", "namespace": "default", "uid": "u", "generation": generation, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec, "status": status}


@settings(deadline=None)
@given(spec=anything | st.dictionaries(st.sampled_from(["strategy", "trainer", "roles", "batch", "options"]), anything), status=anything)
def test_every_invalid_object_gets_problems_with_a_field_and_a_message(spec: Any, status: Any) -> None:
    admitted = admission().admit(obj(spec, status=status))
    assert admitted.problems
    assert all(problem.field and problem.message for problem in admitted.problems)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["phase", "attempt", "attempts", "world", "conditions", "restarts", "progress"]), anything))
def test_an_unreadable_field_of_the_status_leaves_the_other_fields(damage: dict[str, Any]) -> None:
    assert readable_status({**damage, "image": "kept"}).image == "kept"


@pytest.mark.parametrize("forged", ["", "two words", "line\nbreak", "é", 7, ["x"]])
def test_a_status_with_an_impossible_image_has_none(forged: Any) -> None:
    status = readable_status({"image": forged, "attempt": 1, "phase": "Failed"})
    assert (status.image, status.phase) == (None, "Failed")
    assert readable_status({"image": "registry.example.com:5000/a/b:1@sha256:" + "0" * 64}).image is not None


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_no_clock_shows_leaves_the_other_fields_of_a_status(time: str) -> None:
    status = readable_status({"startTime": time, "queue": {"name": "q", "since": time, "summary": "q"}, "image": "kept"})
    assert (status.start_time, status.queue, status.image) == (None, None, "kept")


@pytest.mark.parametrize(
    "damage",
    [
        {"attempt": 999_999_999},
        {"attempt": 2**63 - 1},
        {"progress": {"step": 2**63 - 1}},
        {"progress": {"samplesPerSecond": 1.7e308}},
        {"progress": {"metrics": {"accuracy": -1.7e308}}},
        {"progress": {"metrics": {"accuracy": nan}}},
        {"goodput": {"queuedSeconds": 1e308}},
        {"goodput": {"ratio": 1e308}},
        {"goodput": {"ratio": nan}},
        {"goodput": {"productiveSeconds": inf}},
        {"goodput": {"suspendedSeconds": -1}},
        {"restarts": {"total": 2**63 - 1}},
    ],
)
def test_a_number_out_of_bounds_counts_as_absent(damage: dict[str, Any]) -> None:
    [field] = damage
    status = readable_status({**damage, "image": "kept"})
    usual: dict[str, Any] = {"attempt": [0], "progress": [Progress(), Progress(metrics={})]}
    usual |= {"goodput": [Goodput()], "restarts": [Restarts()]}
    assert getattr(status, field) in usual[field]
    assert status.image == "kept"


FAILED = {"attempt": 0, "startTime": BEGAN, "endTime": BEGAN, "class": "Application", "reason": "UserError", "failedTime": BEGAN}


@pytest.mark.parametrize(
    "changes",
    [
        {"world": None},
        {"attempt": 1},
        {"attempts": []},
        {"world": {**WORLD, "attempt": 3}},
        {"attempts": [{"attempt": 2, "startTime": BEGAN}]},
        {"attempts": [*RUNNING["attempts"], *RUNNING["attempts"]]},
        {"attempt": 1, "world": {**WORLD, "attempt": 1}, "attempts": [*RUNNING["attempts"], {"attempt": 1, "startTime": BEGAN}]},
        {"attempts": [{**FAILED, "endTime": None}]},
        {"attempts": [{**FAILED, "failedTime": None}]},
        {"attempts": [{**FAILED, "reason": None}]},
    ],
)
def test_attempts_that_contradict_each_other_are_dropped(changes: dict[str, Any]) -> None:
    status = readable_status({**RUNNING, **changes, "checkpoint": {"step": 7, "path": "step-7", "committedAt": BEGAN}})
    assert (status.attempts, status.world) == ((), None)
    assert status.attempt == changes.get("attempt", 0)
    assert status.checkpoint is not None


@pytest.mark.parametrize("attempts", [RUNNING["attempts"], [FAILED], [{**FAILED, "failedTime": None, "settled": True}]])
def test_attempts_that_fit_together_stay(attempts: list[dict[str, Any]]) -> None:
    assert readable_status({**RUNNING, "attempts": attempts}).attempts


def test_all_unreadable_items_of_a_list_are_dropped_and_no_others() -> None:
    nodes = [{"name": name, "deaths": deaths, "until": BEGAN} for name, deaths in [("a", -1), ("b", 2), ("c", 2**60), ("d", 2)]]
    assert [node.name for node in readable_status({"avoidedNodes": nodes}).avoided_nodes] == ["b", "d"]


def test_a_status_is_read_once_until_it_changes() -> None:
    admits, job = admission(), obj(GOOD, status=RUNNING)
    status = admits.admit(job).job.status
    assert admits.admit(job).job.status is status
    changed = {**job, "status": {**RUNNING, "phase": "Succeeded"}}
    assert admits.admit(changed).job.status.phase is Phase.SUCCEEDED
    assert admits.admit(job).job.status == status


def test_a_running_job_continues_with_its_old_spec_after_an_invalid_change() -> None:
    admits = admission()
    assert admits.admit(obj(GOOD)).problems == ()
    template = {"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}}
    bad = {**GOOD, "roles": {"worker": {"replicas": 2, "template": template}}}
    admitted = admits.admit(obj(bad, generation=2, status=RUNNING))
    assert [problem.field for problem in admitted.problems] == ["spec.roles.worker.template"]
    assert admitted.job.spec.roles[next(iter(admitted.job.spec.roles))].template == {}
    assert admits.admit(obj(GOOD, generation=3, status=RUNNING)).problems == ()


def test_a_running_job_without_a_policy_continues_with_its_old_spec() -> None:
    admits = admission()
    admits.admit(obj(GOOD))
    changed = {**GOOD, "trainer": {"task": "digits", "config": {"epochs": 3}}}
    admitted = admits.admit(obj(changed, generation=2, status=RUNNING))
    assert [problem.field for problem in admitted.problems] == ["spec.trainer"]
    assert admitted.job.spec.trainer.config == {}
    assert admits.admit(obj({**changed, "suspend": True}, generation=3, status=RUNNING)).problems == ()


@pytest.mark.parametrize(
    "more", [{"elastic": {"minReplicas": 1, "maxReplicas": 2}, "batch": {"globalSize": 8}}, {"recovery": {"spares": 1}}]
)
def test_a_job_stays_valid_while_its_world_lacks_the_first_worker(more: dict[str, Any]) -> None:
    """A new leader checks every job again."""
    world = {**WORLD, "size": 1, "members": [{"role": "worker", "index": 1}]}
    assert admission().admit(obj({**GOOD, **more}, status={**RUNNING, "world": world})).problems == ()


def test_a_mount_needs_a_volume_of_the_pod_or_of_the_installation() -> None:
    spec = {"containers": [{"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}
    mounting = {**GOOD, "roles": {"worker": {"replicas": 2, "template": {"spec": spec}}}}
    [problem] = admission().admit(obj(mounting)).problems
    assert problem.field == "spec.roles.worker.template.spec.containers"
    assert absent(problem.message, "trainer", "data") == []
    own = {**GOOD, "roles": {"worker": {"template": {"spec": {**spec, "volumes": [{"name": "data", "emptyDir": {}}]}}}}}
    assert admission().admit(obj(own)).problems == ()
    installation = JobDefaults(template={"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}})
    assert Admission(IMAGES, installation).admit(obj(mounting)).problems == ()


def test_jobs_without_storage_get_the_storage_of_the_installation() -> None:
    spec = admission().admit(obj(GOOD)).job.spec
    storage = type(spec.checkpoint).model_validate({"storage": {"persistentVolumeClaim": {"claimName": "all"}}}).storage
    own = {**GOOD, "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "own"}}}}
    admits = Admission(IMAGES, JobDefaults(storage=storage))
    filled = admits.admit(obj(GOOD)).job.spec.checkpoint.storage
    named = admits.admit(obj(own, generation=2)).job.spec.checkpoint.storage
    assert filled == storage
    assert named
    assert named.persistent_volume_claim
    assert named.persistent_volume_claim.claim_name == "own"


def test_a_stricter_policy_applies_only_to_the_next_version_of_an_accepted_job() -> None:
    admits = Admission(IMAGES, JobDefaults(), JobPolicy(max_replicas_per_job=1))
    [problem] = admits.admit(obj(GOOD)).problems
    assert problem.field == "spec.roles"
    valid = {"type": "Valid", "status": "True", "reason": "Accepted", "lastTransitionTime": "2026-11-21T12:00:00Z", "observedGeneration": 1}
    accepted = {**RUNNING, "conditions": [valid]}
    admits = Admission(IMAGES, JobDefaults(), JobPolicy(max_replicas_per_job=1))
    assert admits.admit(obj(GOOD, status=accepted)).problems == ()
    assert admits.admit(obj({**GOOD, "suspend": True}, generation=2, status=accepted)).problems == (problem,)


def test_the_job_policy_does_not_apply_to_defaults_of_the_installation() -> None:
    spec = admission().admit(obj(GOOD)).job.spec
    storage = type(spec.checkpoint).model_validate({"storage": {"persistentVolumeClaim": {"claimName": "all"}}}).storage
    admits = Admission(IMAGES, JobDefaults(storage=storage), JobPolicy(volumes=[]))
    assert admits.admit(obj(GOOD)).problems == ()
    own = {**GOOD, "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "own"}}}}
    assert [problem.field for problem in admits.admit(obj(own, generation=2)).problems] == ["spec.checkpoint.storage.persistentVolumeClaim"]


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("config", [deep(100), deep(600), deep(5_000), {"x": [[]] * 340_000}, {"x": "y" * 10**6}])
def test_a_configuration_out_of_bounds_is_refused_with_the_name_of_its_field(config: dict[str, Any]) -> None:
    admitted = admission().admit(obj({**GOOD, "trainer": {"task": "digits", "config": config}}))
    assert [problem.field for problem in admitted.problems] == ["spec.trainer.config"]


def test_a_job_is_invalid_if_a_check_of_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    admits = admission()
    assert admits.admit(obj(GOOD)).problems == ()
    monkeypatch.setattr("muster.control.admission.problems_with_defaults", breaks)
    [problem] = admits.admit(obj(GOOD, generation=2)).problems
    assert problem.field == "spec"
    running = admits.admit(obj(GOOD, generation=3, status=RUNNING))
    assert running.job.spec.trainer.task == "digits", "what runs goes on as it was"
    monkeypatch.undo()
    assert admits.admit(obj(GOOD, generation=4)).problems == ()
