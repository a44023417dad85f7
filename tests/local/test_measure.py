"""`muster bench-collectives` and `muster plan` with real processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from muster.admission.read import read_job
from muster.api.spec import WORKER, Role
from muster.local.errors import RunError
from muster.tools.measure.jobs import collectives_job, rehearsal_job
from muster.tools.measure.measuring import run_and_measure
from muster.tools.measure.readings import collectives, rehearsed, socket

EXAMPLES = Path("examples").absolute()
SIZES = {1024, 2**20}
TORCH = {"AllReduce", "AllReduce OneDevice", "AllReduce ScatterGather", "AllReduce FP16", "AllReduce BF16"}
TENSORFLOW = {"AllReduce Auto", "AllReduce Ring", "AllGather"}
DEVICES = {"AllReduce Auto", "AllReduce Hierarchical", "AllReduce OneDevice", "AllGather"}


@pytest.mark.parametrize(
    ("example", "own", "operations"),
    [
        pytest.param("digits-ddp", "AllReduce", TORCH | {"Broadcast", "AllGather", "ReduceScatter"}, marks=pytest.mark.torch),
        pytest.param("digits-mwms", "AllReduce Auto", TENSORFLOW, marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
        pytest.param("mirrored", "AllReduce Hierarchical", DEVICES, marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
        pytest.param("jax", "AllReduce", {"AllReduce", "AllGather", "ReduceScatter"}, marks=[pytest.mark.jax, pytest.mark.thorough]),
    ],
)
def test_every_collective_of_a_world_is_measured_at_every_size(example: str, own: str, operations: set[str]) -> None:
    job = read_job(EXAMPLES / f"{example}.yaml")
    readings = run_and_measure(collectives_job(job, {"sizes": sorted(SIZES), "seconds": 0.01}), job_file=EXAMPLES / "x.yaml")
    link = socket(readings)
    if operations is not DEVICES:
        assert set(link.bandwidths()) == SIZES
        assert 0 < link.seconds[0] < 1
    collected = collectives(readings)
    assert {(one.name, one.bytes) for one in collected} == {(name, size) for name in operations for size in SIZES}
    assert {one.name for one in collected if one.own} == {own}
    assert all(one.world == 2 and 0 < one.low <= one.seconds <= one.high for one in collected)


@pytest.mark.parametrize(
    "example",
    [
        pytest.param("digits-mwms", marks=pytest.mark.tensorflow),
        pytest.param("jax", marks=[pytest.mark.jax, pytest.mark.thorough]),
    ],
)
def test_a_model_is_rehearsed_by_two_processes_of_which_none_waits_for_the_other(example: str) -> None:
    job = read_job(EXAMPLES / f"{example}.yaml")
    small, large = rehearsed(run_and_measure(rehearsal_job(job, [4, 16], processes=2), job_file=EXAMPLES / "x.yaml"))
    assert [(one.samples, one.processes) for one in (small, large)] == [(4, 2), (16, 2)]
    assert small.gradient_bytes == large.gradient_bytes == 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert min(small.state_bytes, large.state_bytes) >= 3 * small.gradient_bytes  # weights, gradients, momentum
    assert 0 < small.peak_bytes <= large.peak_bytes


def test_what_a_task_refuses_is_the_message_of_the_one_who_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a run that fails is kept
    job = read_job(EXAMPLES / "digits-ddp.yaml")
    broken = rehearsal_job(job, [4], processes=1)
    trainer = broken.spec.trainer.model_copy(update={"config": {"task": "digits", "config": {"hiden": [4]}}})
    spec = broken.spec.model_copy(update={"trainer": trainer, "roles": {WORKER: Role()}})
    with pytest.raises(RunError, match=r"hiden: there is no such key; did you mean hidden") as raised:
        run_and_measure(broken.model_copy(update={"spec": spec}), job_file=EXAMPLES / "x.yaml")
    assert raised.value.code == 11
    assert [str(path) for path in tmp_path.iterdir() if str(path / "attempts") in str(raised.value)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "strategy"),
    [pytest.param("digits-ddp", "DDP", marks=pytest.mark.torch), pytest.param("jax", "JAX", marks=pytest.mark.jax)],
)
def test_a_plan_is_made_of_what_was_measured_and_leaves_nothing_but_its_page(example: str, strategy: str, tmp_path: Path) -> None:
    job_file = EXAMPLES / f"{example}.yaml"
    command = [sys.executable, "-m", "muster.cli", "plan", str(job_file), "-f", "plan.html"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"istribute this: {strategy} with" in ended.stdout
    assert {line.split()[0] for line in ended.stdout.splitlines() if f" {strategy} " in line and line.split()[0].isdigit()} >= {"1", "2"}
    assert f"Plan for {read_job(job_file).metadata.name}" in (tmp_path / "plan.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]
