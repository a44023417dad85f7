"""Golden sentences: the wording of messages to users, a sample of each kind. All other tests assert reasons and fields.

The real code makes each sentence. If you improve one, change it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.acceptance.presets import Presets
from muster.admission.job_policy import JobPolicy, violations
from muster.admission.read import parse_job
from muster.admission.validate import problems
from muster.api.problems import InvalidJobError, Problem
from muster.api.status import ConditionType, Progress, Restarts, TrainingJobStatus
from muster.api.status import Phase as JobPhase
from muster.control.admission import Admission
from muster.control.kubernetes_events import events_between
from muster.explain.explain import as_lines, explain
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import ClaimView, Observed
from muster.local.messages import change_lines, stopped, success
from muster.render.defaults import JobDefaults
from muster_contract.codes import ExitCode
from muster_contract.inputs import InputProgress
from tests.support.presets import preset
from tests.unit.control.test_admission import GOOD, IMAGES, obj
from tests.unit.explain import test_explain as cluster
from tests.unit.lifecycle.lifecycle_cases import Story, at, ended_with, failed, job, replica, report, running, running_story
from tests.unit.local import local_jobs as local

UNSCHEDULABLE = "0/4 nodes are available: 4 Insufficient cpu."


def condition_message(status: TrainingJobStatus, kind: ConditionType) -> str:
    condition = status.condition(kind)
    assert condition is not None
    return condition.message


def event_message(before: TrainingJobStatus, after: TrainingJobStatus, reason: str) -> str:
    [message] = [event.message for event in events_between(before, after) if event.reason == reason]
    return message


# The message of the status, while the job starts and trains


def held_back() -> str:
    story = running_story(1)
    story.see(failed(code=10, seconds=20), seconds=20)
    story.see(seconds=29)
    return story.status.message


def awaited_replicas() -> str:
    story = Story(job(workers=100))
    story.see(seconds=0)
    story.see(*running(97), replica("worker-98", phase="Pending", reason="ImagePullBackOff"), seconds=5)
    return story.status.message


def awaited_after_a_failure() -> str:
    story = running_story(2)
    story.see(failed("worker-1", 21, seconds=20, message="saved at step 340"), replica("worker-0"), seconds=20)
    story.see(replica("worker-0", attempt=1), replica("worker-1", attempt=1, phase="Pending"), seconds=30)
    return story.status.message


def awaited_older_pods() -> str:
    story = running_story(2)
    story.see(failed("worker-1", 21, seconds=20, message="saved at step 340"), replica("worker-0"), seconds=20)
    return story.status.message


def awaited_input() -> str:
    story = Story(job(workers=2, inputs=[{"name": "base", "source": "hf://org/tiny"}]))
    story.see(seconds=0)
    progress = InputProgress("base", "Fetching", "c1", 3_100_000_000, 8_000_000_000)
    story.see(replica("worker-0", phase="Pending", node="n1", inputs=(progress,)), replica("worker-1"), seconds=20)
    return story.status.message


def no_steps() -> str:
    return running_story(1, trainer={"script": "train.py"}).status.message


# The message of the status, when the job has ended


def late_start() -> str:
    story = Story(job(workers=2, startupDeadlineSeconds=100))
    story.see(seconds=0)
    story.see(replica("worker-0"), replica("worker-1", phase="Pending", reason="ImagePullBackOff", message="no such image"), seconds=100)
    return story.status.message


def not_valid() -> str:
    story = Story(job(workers=1), problems=[Problem("spec.batch.globalSize", "write at least 1")])
    story.see(seconds=0)
    return story.status.message


def spent_budget() -> str:
    story = running_story(1, recovery={"application": {"limit": 0}})
    last = ended_with(137, "rank 0: ended by signal 9 (SIGKILL)", step=5)
    story.see(replica(phase="Failed", exit_code=137, oom_killed=True, finished=at(30), termination=last), seconds=30)
    story.see(seconds=90)
    return condition_message(story.status, ConditionType.FAILED)


def still_running() -> str:
    story = running_story(2, cleanPodPolicy="None")
    views = [replica(f"worker-{index}", phase="Succeeded", finished=at(50), exit_code=0, side_car_runs=index == 1) for index in range(2)]
    story.see(*views, seconds=50)
    story.see(*views, seconds=80)
    return story.status.message


# Conditions


def missing_claim() -> str:
    stored: dict[str, Any] = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}}}
    return condition_message(decide(job(workers=2, **stored), Observed(claim=ClaimView()), at(0)).status, ConditionType.STORAGE_SHARED)


def short_grace_period() -> str:
    story = running_story(2)
    commit = {"step": 7, "path": "step-7", "time": at(20).timestamp(), "seconds": 30}
    story.see(replica("worker-0", report=report(step=8, checkpoint=commit)), replica("worker-1"), seconds=20)
    story.see(replica("worker-0"), replica("worker-1", node="node-b", deleting=at(30), due=at(70)), seconds=30)
    return condition_message(story.status, ConditionType.GRACE_SUFFICIENT)


def slow_rank() -> str:
    story = running_story(3)
    paces = [{"rank": rank, "step": 7, "updatedAt": at(30).timestamp(), "seconds": 0.1} for rank in range(3)]
    own = (0.02, 0.02, 0.08)
    reports = [report(f"worker-{rank}", step=7, at_second=30, ranks=[{**paces[rank], "ownSeconds": own[rank]}]) for rank in range(3)]
    story.see(*(replica(f"worker-{rank}", report=each, reported=at(30)) for rank, each in enumerate(reports)), seconds=30)
    return condition_message(story.status, ConditionType.STRAGGLING)


# Attempts, notices and Events


def restart() -> str:
    story = running_story(2)
    before = story.status
    story.see(failed(code=10, seconds=20, message="ValueError: no such column"), replica("worker-1"), seconds=20)
    return event_message(before, story.status, "Restarting")


def recovery() -> str:
    story = running_story(1)
    story.see(replica(report=report(step=7, inPlace=True), reported=at(10)), seconds=10)
    last = {"code": 137, "attempt": 0, "message": "killed", "endedAt": at(10.125).timestamp()}
    story.see(replica(report=report(step=7, inPlace=True, waiting=True, termination=last), reported=at(10.25)), seconds=10.25)
    story.see(replica(report=report(attempt=1, inPlace=True, waiting=True), reported=at(10.5)), seconds=11.25)
    before = story.status
    marks = {"restoring": at(11.55).timestamp(), "resumed": at(11.6).timestamp(), "stepped": at(11.8).timestamp()}
    story.see(replica(report=report(attempt=1, step=8, inPlace=True, marks=marks), reported=at(12)), seconds=12)
    return event_message(before, story.status, "Recovered")


def recovery_without_steps() -> str:
    story = running_story(1, trainer={"script": "train.py"})
    story.see(failed(code=31, seconds=20), seconds=20)
    story.see(seconds=21)
    before = story.status
    story.see(replica(attempt=1), seconds=22.5)
    return event_message(before, story.status, "Recovered")


def hang() -> str:
    story = running_story(2, recovery={"hang": {"stepSeconds": 60}})
    story.see(replica(report=report(step=5, idleSeconds=60), reported=at(80)), replica("worker-1", reported=at(80)), seconds=80)
    return story.status.attempts[0].message


def different_environments() -> str:
    story = running_story(2)
    versions = ("2.15.0", "2.14.0")
    fingerprints = [{"rank": rank, "framework": "torch", "version": version} for rank, version in enumerate(versions)]
    reports = [report(f"worker-{rank}", step=1, fingerprints=[each]) for rank, each in enumerate(fingerprints)]
    story.see(*(replica(f"worker-{rank}", report=each) for rank, each in enumerate(reports)), seconds=60)
    [notice] = story.status.notices
    return notice.message


# Admission


def refused_file(more: str = "", *, trainer: str = "{task: digits}") -> str:
    head = "apiVersion: muster.dev/v1beta1\nkind: TrainingJob\nmetadata: {name: digits}\n"
    with pytest.raises(InvalidJobError) as refused:
        parse_job(f"{head}spec:\n  strategy: DDP\n  trainer: {trainer}\n{more}", source="job.yaml")
    return str(refused.value)


def unknown_field() -> str:
    return refused_file("  suspended: true\n")


def wrong_type() -> str:
    return refused_file('  roles: {worker: {replicas: "2"}}\n')


def no_program() -> str:
    return refused_file(trainer="{}")


def small_batch() -> str:
    return refused_file("  roles: {worker: {replicas: 4}}\n  batch: {globalSize: 3}\n")


def field_of_muster() -> str:
    return refused_file("  roles: {worker: {template: {spec: {restartPolicy: Always}}}}\n")


def missing_preset() -> str:
    admission = Admission(IMAGES, JobDefaults(), JobPolicy(), presets=Presets([preset("h100-8"), preset("a100-8")]))
    [problem] = admission.admit(obj({**GOOD, "preset": "h100-9"})).problems
    return str(problem)


def forbidden_volume() -> str:
    template = {"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}
    [problem] = violations(JobPolicy.model_validate({"volumes": ["emptyDir"]}), job(roles={"worker": {"template": template}}).spec)
    return str(problem)


def large_world_of_a_command() -> str:
    roles = {"worker": {"replicas": 4000}}
    batch = {"globalSize": 4000}
    [problem] = problems(job(strategy="MultiWorkerMirrored", trainer={"command": ["python", "a.py"]}, roles=roles, batch=batch))
    return str(problem)


# The commands


def explanation() -> str:
    pods = [cluster.pod(index, status=cluster.unscheduled(UNSCHEDULABLE)) for index in range(5)]
    lines = as_lines(explain(cluster.of(cluster.STARTING, *pods, unreadable=("nodes",))))
    return "\n".join([*lines[:2], lines[-1]])


def ended_attempt() -> str:
    [line] = change_lines(TrainingJobStatus(), TrainingJobStatus(attempts=(local.failed(0),)))
    return line


def resumed_attempt() -> str:
    before = TrainingJobStatus(attempts=(local.failed(0), replace(local.failed(1), settled=False)))
    after = replace(before, attempts=(before.attempts[0], replace(before.attempts[1], step_resumed=320, steps_lost=4)))
    [line] = change_lines(before, after)
    return line


def stop_without_a_save() -> str:
    [line] = stopped(local.job(TrainingJobStatus()), ExitCode.PREEMPTED_NOT_SAVED, "muster run job.yaml --resume")
    return line


def summary() -> str:
    progress = Progress(step=345, loss="0.0912", metrics={"accuracy": 0.97222}, updated_at=local.NOW)
    status = TrainingJobStatus(phase=JobPhase.SUCCEEDED, progress=progress, restarts=Restarts(total=2))
    return "\n".join(success(local.job(status), Path("runs/tiny")))


SENTENCES: Mapping[Callable[[], str], str] = {
    held_back: "worker-0 failed: termination message. Attempt 1 begins at 10:00:30 UTC",
    awaited_replicas: "waiting for worker-97, worker-98, worker-99 (97 of 100 run): ImagePullBackOff",
    awaited_after_a_failure: ("worker-1 was asked to stop: saved at step 340. Restarting; waiting for worker-1 (1 of 2 run)"),
    awaited_older_pods: (
        "worker-1 was asked to stop: saved at step 340. Restarting; waiting for the old pods digits-worker-0, digits-worker-1 to go"
    ),
    awaited_input: "waiting for input base (3.1 GB of 8.0 GB on the slowest replica; 1 of 2 replicas have it)",
    no_steps: "all replicas run; the program has not reported a step",
    late_start: "the job did not start within 100 s: it waited for worker-1 (1 of 2 run): ImagePullBackOff: no such image",
    not_valid: "the job is not valid, so nothing starts: spec.batch.globalSize: write at least 1",
    spent_budget: (
        "your code failed once (limit: 0 restarts). worker-0: the container ran out of memory: raise "
        "resources.limits.memory of its container in spec.roles.worker.template (rank 0: ended by signal 9 (SIGKILL))"
    ),
    still_running: "the training has finished. Because cleanPodPolicy is None, these pods still hold resources: worker-1",
    missing_claim: "there is no claim ckpt in this namespace. Create it as ReadWriteMany; the pods wait for it for 1800 s",
    short_grace_period: (
        "worker-1 on node-b was asked to stop with 40 s to save. A save takes up to 65 s, and new pods get 120 s. Where a node gives "
        "less, raise shutdownGracePeriod of its kubelet, or drain with a longer --grace-period"
    ),
    slow_rank: "rank 2 (worker-2) takes 0.08 s per step; the median is 0.02 s",
    restart: "worker-0 failed: ValueError: no such column. Restarting as attempt 1 (failure class Application)",
    recovery: ("attempt 1 trains again 1.68 s after the failure (detect 0.12, schedule 1.00, start 0.30, load 0.05, first step 0.20)"),
    recovery_without_steps: "attempt 1 runs again 2.50 s after the failure (detect 0.00, schedule 2.50)",
    hang: "no new step for 60 s after step 5, while training",
    different_environments: "environments differ: worker-1 (rank 1) has version 2.14.0, worker-0 (rank 0) has 2.15.0",
    unknown_field: "job.yaml:7: spec.suspended: is not a field of spec; did you mean suspend?",
    wrong_type: 'job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not "2": take the quotes away',
    no_program: "job.yaml:6: spec.trainer: needs exactly one of task, module, script and command",
    small_batch: "job.yaml:8: spec.batch.globalSize: 3 samples cannot be divided among 4 devices; write at least 4",
    field_of_muster: (
        "job.yaml:7: spec.roles.worker.template.spec.restartPolicy: may not be set: Muster decides when a pod is replaced; leave it out"
    ),
    missing_preset: "spec.preset: there is no preset h100-9; there are a100-8, h100-8",
    forbidden_volume: (
        "spec.roles.worker.template.spec.volumes[0].hostPath: may not be used: this installation allows emptyDir, not hostPath"
    ),
    large_world_of_a_command: (
        "spec.trainer.command: TF_CONFIG has the address of each replica, and 4000 of them take 158969 bytes: Linux starts no "
        "program with a variable of more than 131072; write script instead, or at most 3293 replicas in all"
    ),
    explanation: (
        "digits is Starting.\n"
        "1. No node has enough free CPU for a pod (worker-0, worker-1, worker-2 and 2 more).\n"
        "You may not read nodes, so causes there are not shown."
    ),
    ended_attempt: "worker-1 was killed: ended by signal 9",
    resumed_attempt: "attempt 1: resumed at step 320; 4 steps are done again",
    stop_without_a_save: "stopped, and nothing was saved. Start again with: muster run job.yaml --resume",
    summary: ("tiny succeeded, 345 steps, loss 0.0912, 2 restarts\nevaluation: accuracy 0.9722\nlogs and checkpoints: runs/tiny"),
}


@pytest.mark.parametrize("made", SENTENCES, ids=lambda made: made.__name__)
def test_a_message_has_the_golden_wording(made: Callable[[], str]) -> None:
    assert made() == SENTENCES[made]
