"""The device-hours and the cost of a job, and the limits on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.capacity import CapacityClass
from muster.api.status import Phase, Usage
from muster.lifecycle.observed import ReplicaView
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, failed, job, replica, report, running

GPUS = (("nvidia.com/gpu", 8),)
TERMS = [{"matchExpressions": [{"key": "example.com/class", "operator": "Exists"}]}]
PARTS = ("useful", "unreported", "checkpoint", "redone", "waiting", "recovering", "idle")


def on(node: str, label: str = "worker-0", *, placed: float = 0, **changes: Any) -> ReplicaView:
    """A replica with a node since `placed`."""
    return replica(label, node=node, placed=at(placed), created=at(placed), **changes)


def ended(view: ReplicaView, seconds: float) -> ReplicaView:
    """The replica after it has succeeded."""
    return replace(view, phase=replica(phase="Succeeded").phase, finished=at(seconds), released=at(seconds), exit_code=0)


def priced(**classes: dict[str, float]) -> dict[str, CapacityClass]:
    return {name: CapacityClass.model_validate({"nodeSelectorTerms": TERMS, **prices}) for name, prices in classes.items()}


def used(story: Story) -> Usage:
    usage = story.status.usage
    assert usage is not None
    assert sum(vars(usage)[f"{part}_seconds"] for part in PARTS) == pytest.approx(usage.device_seconds, abs=0.01)
    return usage


def begun(**spec: Any) -> Story:
    """A job of one worker that has 8 GPUs on a node since second 2, and has trained since second 12."""
    story = Story(job(workers=1, **spec))
    story.see(seconds=0)
    story.see(on("a", placed=2, devices=GPUS), seconds=10)
    story.see(on("a", placed=2, devices=GPUS, report=report(step=1)), seconds=12)
    return story


def test_a_pod_counts_from_its_node_to_its_end_in_its_devices() -> None:
    story = begun()
    story.see(ended(on("a", placed=2, devices=GPUS, report=report(step=100)), seconds=112), seconds=113)
    usage = used(story)
    assert (usage.device_seconds, usage.uncertain_seconds) == (8 * 110, 0)
    assert (usage.waiting_seconds, usage.useful_seconds) == (8 * 10, 8 * 100)
    assert [(each.device, each.seconds, each.open, each.ended) for each in usage.devices] == [("nvidia.com/gpu", 880, 0, 8)]


def test_a_pod_without_a_node_uses_nothing() -> None:
    story = Story(job(workers=2))
    story.see(seconds=0)
    story.see(on("a", "worker-0"), replica("worker-1", phase="Pending"), seconds=100)
    assert used(story).device_seconds == 100


def test_the_count_does_not_depend_on_the_number_of_writes_or_operators() -> None:
    often, seldom = begun(), begun()
    for second in range(40, 400, 31):
        often.see(on("a", placed=2, devices=GPUS, report=report(step=second)), seconds=second)
    for story in (often, seldom):
        story.see(ended(on("a", placed=2, devices=GPUS, report=report(step=400)), seconds=412), seconds=500)
    assert used(often).device_seconds == used(seldom).device_seconds == 8 * 410


def test_the_use_of_devices_causes_no_write_while_a_job_runs() -> None:
    story = begun(trainer={"script": "train.py"})
    before = story.status
    for second in (100, 1000, 10_000):
        assert story.see(on("a", placed=2, devices=GPUS, report=report(step=1)), seconds=second).status == before


def test_a_pod_that_was_seen_to_go_counts_to_that_moment() -> None:
    story = begun()
    lost = on("a", placed=2, devices=GPUS, report=report(step=1))
    story.departed = (replace(lost, released=at(50)),)
    story.see(seconds=60)
    assert (used(story).device_seconds, used(story).uncertain_seconds) == (8 * 48, 0)


def test_a_pod_that_went_unseen_counts_until_now_as_uncertain() -> None:
    story = begun()
    story.see(seconds=60)
    usage = used(story)
    assert (usage.device_seconds, usage.uncertain_seconds) == (8 * 58, 8 * 48)
    assert [each.open for each in usage.devices] == [0]
    story.see(seconds=600)
    assert used(story).device_seconds == 8 * 58, "and no longer"


def test_an_end_that_is_reported_late_is_not_counted_as_a_loss() -> None:
    story = begun()
    view = on("a", placed=2, devices=GPUS, report=report(step=1))
    story.see(ended(view, seconds=11.5), seconds=200)  # kubelets report whole seconds, so the end may lie before the last count
    assert (used(story).device_seconds, used(story).uncertain_seconds) == (8 * 10, 0)


def test_an_ended_job_is_written_once_more_when_its_last_pod_has_ended() -> None:
    story = Story(job(workers=1, roles={"worker": {"replicas": 1}, "evaluator": {"replicas": 1}}, strategy="MultiWorkerMirrored"))
    story.see(seconds=0)
    both = on("a", "worker-0", report=report(step=1)), on("a", "evaluator-0")
    story.see(*both, seconds=10)
    story.see(ended(both[0], 100), both[1], seconds=100)
    assert story.status.phase is Phase.SUCCEEDED
    story.see(ended(both[0], 100), both[1], seconds=105)
    assert used(story).device_seconds == 200, "nothing is written while the evaluator ends"
    story.see(ended(both[0], 100), ended(both[1], 130), seconds=130)
    assert used(story).device_seconds == 230
    assert used(story).idle_seconds == 30
    before = story.status
    story.see(ended(both[0], 100), seconds=1000)
    assert story.status == before


def test_steps_that_are_lost_take_their_device_seconds_along() -> None:
    story = begun()
    view = on("a", placed=2, devices=GPUS)
    story.see(replace(view, report=report(step=100, checkpoint={"step": 50, "path": "c"})), seconds=112)
    broken = failed(code=31, seconds=112, node="a", placed=at(2), released=at(112), devices=GPUS, report=report(step=100))
    story.see(broken, seconds=112)
    story.see(seconds=114)
    again = on("a", placed=116, attempt=1, devices=GPUS)
    story.see(again, seconds=118)
    resumed = report(attempt=1, step=51, resumed={"committedStep": 50, "step": 50, "path": "c"})
    story.see(replace(again, report=resumed), seconds=120)
    usage = used(story)
    assert usage.redone_seconds == pytest.approx(8 * 50, rel=0.05)
    assert usage.recovering_seconds == pytest.approx(8 * 4, rel=0.1)


def test_a_spare_is_idle() -> None:
    story = Story(job(workers=1, recovery={"spares": 1}))
    story.see(seconds=0)
    worker, spare = on("a", "worker-0", devices=GPUS), on("b", "worker-1", devices=GPUS, standby=True)
    story.see(worker, spare, seconds=100)
    assert (used(story).device_seconds, used(story).idle_seconds) == (1600, 800)


@pytest.mark.parametrize(
    ("prices", "devices", "cost"),
    [
        ({"pricePerDeviceHour": 2.0}, GPUS, 2 * 8 * 2.0),
        ({"pricePerNodeHour": 3.0}, GPUS, 3.0),
        ({"pricePerDeviceHour": 2.0, "pricePerNodeHour": 3.0}, GPUS, 2 * 8 * 2.0),
        ({"pricePerDeviceHour": 2.0, "pricePerNodeHour": 3.0}, (("pod", 1),), 3.0),
        ({"pricePerDeviceHour": 2.0}, (("pod", 1),), 2 * 2.0),
    ],
)
def test_a_class_has_a_price_for_each_device_or_for_each_node(
    prices: dict[str, float], devices: tuple[tuple[str, int], ...], cost: float
) -> None:
    story = Story(job(workers=2), capacity_classes={"a": "spot"}, classes=priced(spot=prices))
    story.see(seconds=0)
    views = [on("a", f"worker-{index}", devices=devices) for index in (0, 1)]
    story.see(*views, seconds=1800)
    story.see(*(replace(view, report=report(view.label, step=1)) for view in views), seconds=3600)
    assert used(story).cost == pytest.approx(cost)
    assert used(story).hourly_cost == pytest.approx(cost)
    assert [each.capacity_class for each in used(story).devices] == ["spot"]


def test_without_prices_there_is_no_cost() -> None:
    assert used(begun()).cost is None


def test_nothing_is_counted_before_the_classes_of_the_nodes_are_known() -> None:
    story = begun()
    before = used(story)
    story.knows_nodes = False
    story.see(on("a", placed=2, devices=GPUS, report=report(step=50)), seconds=112)
    assert used(story) == before
    story.knows_nodes, story.capacity_classes = True, {"a": "spot"}
    story.see(on("a", placed=2, devices=GPUS, report=report(step=90)), seconds=212)
    assert (used(story).device_seconds, used(story).uncertain_seconds) == (8 * 210, 0)


def test_a_limit_of_device_hours_ends_the_job_when_it_is_reached() -> None:
    story = begun(usageLimits={"deviceHours": 1.0})
    views = [on("a", placed=2, devices=GPUS, report=report(step=1))]
    assert story.see(*views, seconds=400).wake == at(452), "3600 s of 8 devices after second 2"
    decision = story.see(*views, seconds=452)
    assert story.condition("Failed") == ("True", "DeviceHoursLimitReached")
    assert story.status.message == "the job has used 1.00 of 1 device-hours (spec.usageLimits.deviceHours)"
    assert deleted(decision) == ["worker-0/0"]
    assert used(story).device_seconds == 3600


def test_a_limit_of_cost_ends_the_job() -> None:
    classes = priced(spot={"pricePerDeviceHour": 5.0})
    story = Story(job(workers=1, usageLimits={"cost": 10.0}), capacity_classes={"a": "spot"}, classes=classes)
    story.see(seconds=0)
    assert story.see(*running(1, node="a"), seconds=10).wake == at(7200)
    story.see(*running(1, node="a"), seconds=7200)
    assert story.condition("Failed") == ("True", "CostLimitReached")
    assert story.status.message == "the job has cost 10.00 of 10 (spec.usageLimits.cost)"


def test_a_limit_may_suspend_the_job_until_it_is_raised() -> None:
    story = begun(usageLimits={"deviceHours": 1.0, "action": "Suspend"})
    view = on("a", placed=2, devices=GPUS, report=report(step=1))
    decision = story.see(view, seconds=452)
    assert (deleted(decision), story.record.reason) == (["worker-0/0"], "DeviceHoursLimitReached")
    story.departed = (replace(view, released=at(460)),)
    story.see(seconds=460)
    assert story.status.phase is Phase.SUSPENDED
    assert story.condition("Suspended") == ("True", "DeviceHoursLimitReached")
    assert story.status.message == (
        "suspended, because the job has used 1.02 of 1 device-hours (spec.usageLimits.deviceHours). Raise or remove the limit to resume"
    )
    story.departed = ()
    assert not created(story.see(seconds=10_000))
    story.edit(usageLimits={"deviceHours": 2.0, "action": "Suspend"})
    assert created(story.see(seconds=10_001)) == ["worker-0/1"]
    assert used(story).device_seconds == 8 * 458


def test_a_job_at_its_limit_begins_no_attempt() -> None:
    story = begun(usageLimits={"deviceHours": 1.0, "action": "Suspend"})
    broken = failed(code=31, seconds=452, node="a", placed=at(2), released=at(452), devices=GPUS, report=report(step=1))
    story.see(broken, seconds=452)
    story.see(seconds=600)
    assert story.status.phase is Phase.SUSPENDED
