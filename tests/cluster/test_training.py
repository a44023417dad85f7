"""Every kind of job trains to its end in pods of the images that users get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from local_cluster.images import base
from local_cluster.installation import Installation
from tests.support.cluster_jobs import STEPS, ClusterJob, Ground, Manifest, digits, job

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OTHER_STRATEGIES = ("fsdp", "tensor-parallel", "pipeline", "rpc", "one-device", "mirrored", "central-storage")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored"])
def test_digits_trains_on_two_workers(uninterrupted: Callable[[str], ClusterJob], strategy: str) -> None:
    done = uninterrupted(strategy)
    status = done.status
    assert status["phase"] == "Succeeded", done.story()
    assert sorted(done.losses()) == list(range(1, STEPS + 1))
    assert status["progress"]["step"] == status["checkpoint"]["step"] == STEPS
    assert status["progress"]["metrics"]["accuracy"] > 0.94
    assert status["restarts"]["total"] == 0
    done.ground.cluster.wait_until("its pods have ended", lambda: {_phase(pod) for pod in done.pods()} == {"Succeeded"}, timeout=180)


@pytest.mark.timeout(900)
def test_the_example_of_every_other_strategy_trains_in_pods(ground: Ground) -> None:
    for some in (OTHER_STRATEGIES[:3], OTHER_STRATEGIES[3:6], OTHER_STRATEGIES[6:]):  # the machine is small
        for example in [ground.apply(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())) for name in some]:
            assert example.wait_for_end() == "Succeeded", example.story()
            progress = example.status["progress"]
            assert progress["step"] == progress["totalSteps"] > 0
            assert progress["metrics"]
            assert example.status["restarts"]["total"] == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_every_schedule_of_a_pipeline_trains_in_pods(ground: Ground) -> None:
    """The image's torch is older than the one that the local tests run."""
    manifest = yaml.safe_load((EXAMPLES / "pipeline-1f1b.yaml").read_text())
    done = []
    for schedule in ("GPipe", "1F1B", "PipeDream"):
        manifest["metadata"]["name"] = f"with-{schedule.lower()}"
        manifest["spec"]["options"]["pipeline"]["schedule"] = schedule
        done.append(ground.apply(manifest))
    for each in done:
        assert each.wait_for_end() == "Succeeded", each.story()
        assert each.status["progress"]["step"] == each.status["progress"]["totalSteps"] > 0
        assert each.status["restarts"]["total"] == 0
    plain, alternating = (float(each.status["progress"]["loss"]) for each in done[:2])
    assert alternating == pytest.approx(plain, rel=2e-3)  # the same update of the same batches, in another order


@pytest.mark.timeout(900)
def test_a_script_reads_tf_config_and_its_servers_end_with_the_chief(ground: Ground) -> None:
    ground.kubectl("create", "configmap", "code", f"--from-file={SCRIPTS / 'parameter_server.py'}")
    manifest = job(
        "servers",
        strategy="ParameterServer",
        trainer={"script": "parameter_server.py", "code": {"configMap": {"name": "code"}}},
        roles={"chief": {"replicas": 1}, "worker": {"replicas": 2}, "ps": {"replicas": 1}},
    )
    servers = ground.apply(manifest)
    assert servers.wait_for_end() == "Succeeded", servers.story()
    assert "after 60 steps on 2 workers" in ground.kubectl("logs", "servers-chief-0")
    ground.cluster.wait_until("workers and ps are gone", lambda: {_role(pod) for pod in servers.pods()} <= {"chief"}, timeout=180)
    assert servers.status["restarts"]["total"] == 0


@pytest.mark.timeout(900)
def test_a_command_in_an_image_of_the_users_own_is_restarted_in_its_pods(muster: Installation, ground: Ground) -> None:
    image = base.ensure(muster.cluster.places, muster.cluster.require_engine()).torch
    muster.cluster.load_image(image)
    ground.kubectl("create", "configmap", "own-script", f"--from-file={EXAMPLES / 'own-script'}")
    manifest = yaml.safe_load((EXAMPLES / "own-command.yaml").read_text())
    fails_once = "test -e again || { touch again; echo not yet >&2; exit 1; }; exec torchrun train_ddp.py"
    manifest["spec"]["trainer"] |= {"image": image, "command": ["sh", "-c", fails_once]}
    own = ground.apply(manifest)
    ground.cluster.wait_until("its pods", lambda: len(own.pods()) == 2, timeout=180)
    first = {pod["metadata"]["uid"] for pod in own.pods()}
    assert own.wait_for_end() == "Succeeded", own.story()
    assert first & {pod["metadata"]["uid"] for pod in own.pods()}  # a pod that had not reported yet when the other failed is replaced
    assert own.attempts[0]["class"] == "Application", own.story()
    assert "not yet" in own.attempts[0]["message"], own.story()
    assert "with 4 processes" in ground.kubectl("logs", f"{own.name}-worker-0")


@pytest.mark.timeout(900)
def test_the_examples_of_own_programs_run_as_they_stand(ground: Ground) -> None:
    ground.kubectl("create", "configmap", "own-script", f"--from-file={EXAMPLES / 'own-script'}")
    files = ("own-command.yaml", "own-script/ddp.yaml")
    jobs = [ground.apply(yaml.safe_load((EXAMPLES / file).read_text())) for file in files]
    for each in jobs:
        assert each.wait_for_end() == "Succeeded", each.story()
        assert "test accuracy" in ground.kubectl("logs", f"{each.name}-worker-0")


@pytest.mark.timeout(600)
def test_a_program_without_a_supervisor_goes_at_once_when_its_job_is_suspended(ground: Ground) -> None:
    command = ["python", "-c", "import time; print('ready', flush=True); time.sleep(3600)"]
    manifest = job("bare", strategy="DDP", trainer={"command": command, "supervisor": "Disabled"})
    manifest["spec"]["checkpoint"] = {"gracePeriodSeconds": 600}
    bare = ground.apply(manifest)
    bare.wait_for_phase("Running")
    ground.cluster.wait_until("its program", lambda: "ready" in ground.kubectl("logs", "bare-worker-0"), timeout=180)
    ground.kubectl("patch", "trainingjob", "bare", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    ground.cluster.wait_until("its pods are gone", lambda: not bare.pods(), timeout=180)


@pytest.mark.timeout(900)
def test_two_jobs_train_at_a_time(ground: Ground, uninterrupted: Callable[[str], ClusterJob]) -> None:
    pair = [ground.apply(digits(name, strategy, delay=0)) for name, strategy in (("first", "DDP"), ("second", "MultiWorkerMirrored"))]
    for one, strategy in zip(pair, ("DDP", "MultiWorkerMirrored"), strict=True):
        assert one.wait_for_end() == "Succeeded", one.story()
        assert one.losses() == uninterrupted(strategy).losses()


def _phase(pod: Manifest) -> str:
    return str(pod["status"]["phase"])


def _role(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"]["muster.dev/role"])
