"""The lifecycle core under faults: whatever the order of events, the crashes and the staleness of its caller, its invariants hold."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.lifecycle.observed import ReplicaPhase
from tests.property.lifecycle_world import ENDS, NODE_CLASSES, POLICY, START, STOPPED, World, check, check_standing, finish_quietly

LIGHT = settings(max_examples=500, stateful_step_count=50)
HEAVY = settings(max_examples=10000, stateful_step_count=80)
MUTANT = settings(LIGHT, max_examples=3000, phases=[Phase.generate], report_multiple_bugs=False)
"""For planted bugs: the same cases first, then more of them. The first failure is enough."""
PROFILE = settings(
    {"heavy": HEAVY, "mutant": MUTANT}.get(os.environ.get("MUSTER_PROPERTY_PROFILE", ""), LIGHT),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

SHAPES: list[dict[str, Any]] = [
    {"strategy": "DDP", "roles": {"worker": {"replicas": 1}}},
    {"strategy": "DDP", "roles": {"worker": {"replicas": 2}}},
    {"strategy": "DDP", "roles": {"worker": {"replicas": 3}}},
    {
        "strategy": "DDP",
        "roles": {"worker": {"replicas": 3}},
        "batch": {"globalSize": 64},
        "elastic": {"minReplicas": 1, "maxReplicas": 4, "shrinkAfterSeconds": 5, "growAfterSeconds": 20},
    },
    {"strategy": "DDP", "roles": {"worker": {"replicas": 2}}, "recovery": {"spares": 1}},
    {"strategy": "MultiWorkerMirrored", "roles": {"worker": {"replicas": 2}, "evaluator": {"replicas": 1}}},
    {"strategy": "ParameterServer", "roles": {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {"replicas": 1}}},
]


CAPACITY_RETURN = 200
CAPACITY = {"classes": ["spot", "on-demand"], "fallbackAfterSeconds": 100, "returnAfterSeconds": CAPACITY_RETURN}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    recovery = {
        "preemption": {"limit": draw(st.sampled_from([-1, -1, 0, 1, 3]))},
        "infrastructure": {"limit": draw(st.integers(0, 4)), "windowSeconds": draw(st.sampled_from([60, 3600]))},
        "application": {"limit": draw(st.integers(0, 4))},
        "attemptsWithoutProgress": draw(st.sampled_from([3, 5, 50])),
    }
    shape = draw(st.sampled_from([*SHAPES, *SHAPES[-1:] * 2]))  # the last has the most ways to break
    return {
        **shape,
        "trainer": draw(st.sampled_from([{"task": "digits"}, {"script": "train.py"}])),
        "recovery": {**recovery, **shape.get("recovery", {})},
        "scheduling": draw(st.sampled_from([{}, {}, {"capacity": CAPACITY}])),
        "cleanPodPolicy": draw(st.sampled_from(["Running", "All", "None"])),
        "startupDeadlineSeconds": draw(st.sampled_from([600, 86400])),
    }


PICK = st.integers(0, 9)
AGE = st.one_of(st.integers(0, 3), st.integers(0, 60))


class Lifecycle(RuleBasedStateMachine):
    """Rules are what may happen; what may not is checked by the world at each step."""

    @initialize(
        spec=specs(),
        suspended=st.sampled_from([False, False, False, True]),
        in_place=st.booleans(),
        gang=st.booleans(),
        library=st.booleans(),
    )
    def apply(self, spec: dict[str, Any], suspended: bool, in_place: bool, gang: bool, library: bool) -> None:
        self.world = World({**spec, "suspend": suspended}, in_place=in_place, gang=gang, library=library)

    def pod(self, pick: int) -> str:
        names = sorted(self.world.pods)
        return names[pick % len(names)]

    def has_pods(self) -> bool:
        return bool(self.world.pods)

    @rule()
    def reconcile(self) -> None:
        self.world.reconcile()

    @rule(how=st.sampled_from(STOPPED))
    def come_up(self, how: str) -> None:
        """Everything works for a while, and back-offs pass: the quick way to a running world."""
        for _ in range(3):
            self.world.converge()
            self.world.obey(how)
            self.world.pass_time(150)
        self.world.converge()

    @rule(pick=PICK, how=st.sampled_from(list(ENDS)), stopped=st.sampled_from(STOPPED), whole=st.booleans(), frozen=st.booleans())
    def come_up_and_break(self, pick: int, how: str, stopped: str, whole: bool, frozen: bool) -> None:
        self.come_up(stopped)
        self.world.train(7, commit=pick % 2 == 0)
        if self.world.pods and ENDS[how].exit_code != 0:
            self.world.deliver(self.pod(0), 0)
            (self.world.finish if whole else self.world.break_down)(self.pod(pick), how)
            if frozen:
                self.world.freeze(self.pod(pick + 1))

    @rule(view_age=AGE, job_age=st.integers(0, 4))
    def reconcile_stale(self, view_age: int, job_age: int) -> None:
        self.world.reconcile(view_age=view_age, job_age=job_age)

    @rule(view_age=st.integers(1, 12))
    def restart_seen_late(self, view_age: int) -> None:
        """The replicas have just been made again, and the caller's cache still shows the old ones."""
        self.world.converge()
        self.world.obey()
        self.world.pass_time(301)
        self.world.reconcile()
        self.world.reconcile(view_age=view_age)

    @rule(crash_after=st.integers(0, 4))
    def reconcile_and_crash(self, crash_after: int) -> None:
        self.world.reconcile(crash_after=crash_after)

    @rule()
    def converge(self) -> None:
        self.world.converge()

    @rule(seconds=st.sampled_from([0.3, 1, 2.500321, 11, 61, 400]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(how=st.sampled_from(STOPPED))
    def obey(self, how: str) -> None:
        self.world.obey(how)

    @precondition(has_pods)
    @rule(pick=PICK, seconds=st.sampled_from([0, 4, 6, 61, 130]))
    def place(self, pick: int, seconds: float) -> None:
        """The pods of a gang get nodes, but for one, which may have to wait for long."""
        self.world.place(self.pod(pick))
        self.world.converge()
        self.world.pass_time(seconds)
        self.world.converge()

    @precondition(has_pods)
    @rule(pick=PICK)
    def start(self, pick: int) -> None:
        self.world.start(self.pod(pick))

    @precondition(has_pods)
    @rule(pick=PICK, how=st.sampled_from(list(ENDS)))
    def finish(self, pick: int, how: str) -> None:
        name = self.pod(pick)
        pod = self.world.pods[name]
        if pod.view.phase is ReplicaPhase.RUNNING or ENDS[how].exit_code != 0:
            self.world.finish(name, how)

    @precondition(has_pods)
    @rule(pick=PICK, how=st.sampled_from(["user error", "peer lost", "preempted", "storage away"]))
    def fall_one_by_one(self, pick: int, how: str) -> None:
        """One breaks, the caller looks, the others notice: first as the caller sees it is not first in truth."""
        first = self.pod(pick)
        for name in sorted(self.world.pods):
            if name != first:
                self.world.finish(name, "peer lost")
        self.world.reconcile()
        if first in self.world.pods:
            self.world.finish(first, how)

    @precondition(has_pods)
    @rule(pick=PICK, how=st.sampled_from(list(ENDS)), others=st.sampled_from(["", "peer lost", "user error"]))
    def break_down(self, pick: int, how: str, others: str) -> None:
        """Processes end and their supervisors live on: of one replica, and perhaps of all others before anybody has looked."""
        first = self.pod(pick)
        self.world.break_down(first, how)
        for name in sorted(self.world.pods):
            if others and name != first:
                self.world.break_down(name, others)

    @precondition(has_pods)
    @rule(pick=PICK, how=st.sampled_from(["user error", "storage away", "process killed"]))
    def fall_one_by_one_in_place(self, pick: int, how: str) -> None:
        """The others complain, the caller looks, and the one that broke says so together with its acknowledgement."""
        first = self.pod(pick)
        for name in sorted(self.world.pods):
            if name != first:
                self.world.break_down(name, "peer lost")
        self.world.reconcile()
        if first in self.world.pods:
            self.world.break_down(first, how)
            self.world.heed(first)

    @precondition(has_pods)
    @rule(pick=PICK)
    def heed(self, pick: int) -> None:
        self.world.heed(self.pod(pick))

    @precondition(has_pods)
    @rule(pick=PICK)
    def freeze(self, pick: int) -> None:
        self.world.freeze(self.pod(pick))

    @precondition(has_pods)
    @rule(pick=PICK)
    def thaw(self, pick: int) -> None:
        self.world.thaw(self.pod(pick))

    @precondition(has_pods)
    @rule(pick=PICK, muted=st.booleans())
    def mute(self, pick: int, muted: bool) -> None:
        self.world.mute(self.pod(pick), muted=muted)

    @precondition(has_pods)
    @rule(pick=PICK, frozen=st.booleans(), seconds=st.sampled_from([9, 12, 61]))
    def fall_silent(self, pick: int, frozen: bool, seconds: float) -> None:
        """A replica of a world that trains is heard no more: its node is frozen, or it is cut off from the operator alone."""
        self.come_up("completed")
        self.world.train(7, commit=False)
        for name in sorted(self.world.pods):
            self.world.deliver(name, 0)
        self.world.converge()
        if self.world.pods:
            (self.world.freeze if frozen else self.world.mute)(self.pod(pick))
        self.world.pass_time(seconds)
        self.world.reconcile()

    @rule()
    def another_leader(self) -> None:
        self.world.forget_reports()

    @precondition(has_pods)
    @rule(pick=PICK)
    def restart_in_place_before_another_leader_looks(self, pick: int) -> None:
        self.come_up("completed")
        if self.world.pods:
            self.world.break_down(self.pod(pick), "process killed")
        self.come_up("completed")
        self.world.forget_reports()
        self.world.reconcile()

    @precondition(has_pods)
    @rule(pick=PICK, next_pick=PICK, together=st.booleans())
    def break_two(self, pick: int, next_pick: int, together: bool) -> None:
        """At once, or one after the other: the second may be one that the restart after the first has left alone."""
        for each in (pick, next_pick):
            if each == pick or not together:
                self.come_up("preempted")
            if self.world.pods:
                self.world.train(7, commit=True)
                self.world.break_down(self.pod(each), "process killed")
        self.world.converge()

    @precondition(has_pods)
    @rule(pick=PICK)
    def disrupt(self, pick: int) -> None:
        self.world.disrupt(self.pod(pick))

    @precondition(has_pods)
    @rule(
        pick=PICK,
        trains=st.booleans(),
        seconds=st.sampled_from([0, 1, 9, 11]),
        then=st.sampled_from(["", "cure", "user error", "process killed"]),
    )
    def break_a_device(self, pick: int, trains: bool, seconds: float, then: str) -> None:
        """For a while, or until its processes fail; of a world that trains, or at any other moment."""
        if trains:
            self.come_up("completed")
            self.world.train(7, commit=True)
        if not self.world.pods:
            return
        name = self.pod(pick)
        self.world.deliver(self.pod(0), 0)
        self.world.sicken(name)
        self.world.converge()
        self.world.pass_time(seconds)
        if name in self.world.pods and then == "cure":
            self.world.cure(name)
        elif name in self.world.pods and then:
            self.world.break_down(name, then)
        self.world.converge()

    @precondition(has_pods)
    @rule(pick=PICK)
    def cure(self, pick: int) -> None:
        self.world.cure(self.pod(pick))

    @precondition(has_pods)
    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        self.world.delete(self.pod(pick))

    @precondition(has_pods)
    @rule(pick=PICK)
    def remove(self, pick: int) -> None:
        self.world.remove(self.pod(pick))

    @rule(steps=st.integers(1, 50), commit=st.booleans())
    def train(self, steps: int, commit: bool) -> None:
        self.world.train(steps, commit=commit)

    @precondition(has_pods)
    @rule(pick=PICK, which=st.sampled_from([0, 0, 0, 1, 5]))
    def report(self, pick: int, which: int) -> None:
        self.world.deliver(self.pod(pick), which)

    @rule()
    def succeed(self) -> None:
        """All that run end well, but for one in a while: success of some is not success."""
        for name in sorted(self.world.pods)[1:]:
            if self.world.pods[name].view.phase is ReplicaPhase.RUNNING:
                self.world.finish(name, "completed")

    @rule(node=st.sampled_from(["node-0", "node-1", "node-2"]), goes=st.booleans(), trains=st.booleans(), withdrawn=st.booleans())
    def announce(self, node: str, goes: bool, trains: bool, withdrawn: bool) -> None:
        """A node says that it goes, of a world that trains or at any other moment, and perhaps that it stays after all."""
        if trains:
            self.come_up("completed")
            self.world.train(7, commit=True)
            for name in sorted(self.world.pods):
                self.world.deliver(name, 0)
        self.world.announce(node, goes=goes)
        self.world.converge()
        if withdrawn:
            self.world.withdraw(node)
            self.world.converge()
        self.world.obey()
        self.world.converge()

    @rule(full=st.sampled_from(["spot", "on-demand", ""]), seconds=st.sampled_from([1, 99, 150, 300]))
    def fill(self, full: str, seconds: int) -> None:
        """All nodes of a capacity class are full for a while, or those of no class are."""
        self.world.full_class = full
        for _ in range(2):
            self.world.converge()
            self.world.obey("completed")
            self.world.pass_time(seconds)
        self.world.converge()

    @rule(comes=st.booleans())
    def fall_back_and_return(self, comes: bool) -> None:
        """A world trains while the preferred class is full. Later it has room again, or not."""
        self.world.full_class = "spot"
        for _ in range(3):
            self.come_up("completed")
        self.world.train(7, commit=True)
        for name in sorted(self.world.pods):
            self.world.deliver(name, 0)
        self.world.pass_time(CAPACITY_RETURN)
        self.world.converge()
        if comes:
            self.world.full_class = ""
        for _ in range(2):
            self.world.obey("completed")
            self.world.converge()

    @rule(suspend=st.sampled_from([False, False, False, True]))
    def suspend(self, suspend: bool) -> None:
        self.world.edit(lambda spec: spec.update(suspend=suspend))

    @rule(replicas=st.integers(1, 4))
    def scale(self, replicas: int) -> None:
        self.world.edit(lambda spec: spec["roles"]["worker"].update(replicas=replicas))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            check_standing(self.world)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            finish_quietly(self.world, "completed" if self.world.version % 2 else "user error")


LOOPING = [how for how, end in ENDS.items() if end.justifies and how != "bad configuration"]
MOST_IN_A_QUARTER = 25


@pytest.mark.parametrize("among", [["preempted, not saved"], ["storage away"], ["user error"], LOOPING], ids=lambda among: among[0])
@settings(PROFILE, max_examples=10)
@given(
    trainer=st.sampled_from([{"task": "digits"}, {"script": "train.py"}]),
    picks=st.lists(PICK, min_size=1, max_size=5),
    seconds=st.sampled_from([0.0, 0.3, 5, 59]),
    patience=st.sampled_from([3, 1000]),
    in_place=st.booleans(),
)
def test_a_job_that_breaks_without_progress_ends_or_waits_longer_each_time(
    among: list[str], trainer: dict[str, Any], picks: list[int], seconds: float, patience: int, in_place: bool
) -> None:
    """Whatever breaks it, and without any limit on restarts."""
    limits = {each: {"limit": -1} for each in ("preemption", "infrastructure", "application")}
    recovery = {**limits, "attemptsWithoutProgress": patience}
    shape = {"strategy": "DDP", "roles": {"worker": {"replicas": 1}}, "trainer": trainer, "recovery": recovery}
    world, until = World(shape, in_place=in_place), START + timedelta(minutes=15)
    while world.now < until and not world.job.status.phase.final and world.job.status.attempt <= MOST_IN_A_QUARTER:
        decision = world.converge()
        world.obey()
        if world.converge().status.phase == "Running":
            world.pass_time(seconds)
            how = among[picks[world.job.status.attempt % len(picks)] % len(among)]
            (world.break_down if in_place and ENDS[how].code else world.finish)("digits-worker-0", how)
        elif decision.wake:
            world.wait_until(max(world.now, decision.wake))
    restarts = world.job.status.attempt
    check(restarts <= MOST_IN_A_QUARTER, "loops", f"{restarts} restarts in a quarter of an hour")
    ends_it = "task" in trainer and patience == 3
    check(not ends_it or world.job.status.phase.final, "loops", f"{restarts} restarts without a step, and it goes on")


@pytest.mark.timeout(1800)  # a minute of processor time, which may be ten on a slow machine with other tests
class TestLifecycle(Lifecycle.TestCase):  # type: ignore[misc]
    settings = PROFILE


@pytest.mark.parametrize("policy", ["Running", "All", "None"])
@pytest.mark.parametrize("how", ["completed", "user error"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape['strategy']}-{shape['roles']['worker']['replicas']}")
def test_a_job_without_faults_reaches_its_end(shape: dict[str, Any], how: str, policy: str) -> None:
    world = World({**shape, "trainer": {"task": "digits"}, "cleanPodPolicy": policy}, in_place=how == "completed")
    finish_quietly(world, how)
    assert world.job.status.phase == ("Succeeded" if how == "completed" else "Failed")


@pytest.mark.parametrize("seconds", [1, 11])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape['strategy']}-{shape['roles']['worker']['replicas']}")
def test_a_device_that_breaks_is_replaced_and_one_that_recovers_is_kept(shape: dict[str, Any], in_place: bool, seconds: int) -> None:
    world = World({**shape, "trainer": {"task": "digits"}}, in_place=in_place)
    for _ in range(3):
        world.converge()
        world.obey("completed")
    world.converge()
    world.train(7, commit=True)
    world.deliver("digits-chief-0" if "digits-chief-0" in world.pods else "digits-worker-0", 0)
    world.sicken("digits-worker-0")
    world.converge()
    world.pass_time(seconds)
    breaks = seconds > POLICY.device_seconds
    if not breaks:
        world.cure("digits-worker-0")
    world.converge()
    assert world.job.status.attempt == (1 if breaks else 0)
    finish_quietly(world, "completed")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("gang", [True, False])
def test_workers_return_to_their_preferred_class_once_it_has_room(workers: int, gang: bool) -> None:
    shape = {"strategy": "DDP", "roles": {"worker": {"replicas": workers}}, "trainer": {"task": "digits"}}
    machine = Lifecycle()
    machine.world = world = World({**shape, "scheduling": {"capacity": CAPACITY}}, in_place=True, gang=gang)
    machine.fall_back_and_return(comes=False)
    assert {pod.view.node for pod in world.pods.values() if pod.view.node} == {"node-1"}
    machine.fall_back_and_return(comes=True)
    assert [str(record.reason) for record in world.job.status.attempts[:-1]] == ["Rescheduled", "Moved"]
    assert {NODE_CLASSES[pod.view.node] for pod in world.pods.values()} == {"spot"}
    finish_quietly(world, "completed")
    assert world.job.status.restarts.total == 0
