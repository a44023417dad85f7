"""The jobs that measure for other jobs, and reading their output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.admission.read import parse_job, read_job
from muster.admission.validate import problems
from muster.api.problems import InvalidJobError
from muster.cli.bench_collectives import bench_collectives
from muster.cli.main import main
from muster.tools.measure import collectives_page
from muster.tools.measure.jobs import collectives_job, fits, link_job, rehearsal_job
from muster.tools.measure.readings import collectives, costs, in_log, link_of, socket
from muster.tools.report.page import as_text
from muster_contract.events import CollectiveMeasurement, LinkMeasurement, StepMeasurement, encode_event
from tests.support.texts import absent

EXAMPLES = sorted(set(Path("examples").glob("*.yaml")) - set(Path("examples").glob("compare-*.yaml")))
DDP = Path("examples/digits-ddp.yaml")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_valid_measuring_jobs_or_is_refused_with_a_field(path: Path) -> None:
    job = read_job(path)
    for make in (lambda: collectives_job(job, {}), lambda: rehearsal_job(job, [4, 8], processes=2), lambda: link_job(job, [1024])):
        try:
            made = make()
        except InvalidJobError as error:
            refused = error.problems
        else:
            refused = []
            assert problems(made) == []
            assert made.spec.recovery.application.limit == 0
            assert made.spec.checkpoint.storage is None
        assert all(problem.field.startswith("spec.") for problem in refused)


def test_a_rehearsal_has_the_task_of_the_job_and_its_config() -> None:
    job = read_job(DDP)
    config = rehearsal_job(job, [8, 4, 8], processes=3).spec.trainer.all_settings
    assert config == {"task": "digits", "module": None, "config": job.spec.trainer.all_settings, "samples": [4, 8]}


def test_a_world_far_larger_than_the_machine_is_refused() -> None:
    fits(8, processors=2)
    with pytest.raises(InvalidJobError, match=r"9 processes.*2 processors.*at most 8"):
        fits(9, processors=2)


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        (
            "plan",
            {"task: digits": "command: [python, train.py]", "settings:": "config:"},
            "spec.trainer.command: the steps of a program of your own cannot be measured",
        ),
        ("plan", {"replicas: 2": "replicas: 4000", "globalSize: 64": "globalSize: 4000"}, "the world has 4000 processes"),
        ("plan", {"strategy: DDP": "strategy: DPP"}, "did you mean DDP"),
        ("bench-collectives", {"replicas: 2": "replicas: 1"}, "spec.roles.worker.replicas: a world of one process"),
        ("bench-collectives", {"strategy: DDP": "strategy: RPC"}, "spec.strategy: RPC has no collectives to measure"),
    ],
)
def test_a_job_that_cannot_be_measured_ends_with_one_message(
    command: str, changes: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DDP.read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main([command, str(path)])
    assert ended.value.code == 11
    assert message in capsys.readouterr().err


def measured(operation: str, size: int, seconds: float, *, own: bool = False, world: int = 4) -> CollectiveMeasurement:
    name, _, variant = operation.partition(" ")
    interval = {"median": seconds, "low": 0.9 * seconds, "high": 1.1 * seconds}
    return CollectiveMeasurement(operation=name, variant=variant, own=own, bytes=size, world=world, **interval)


LINK = [LinkMeasurement(bytes=size, median=seconds) for size, seconds in ((0, 5e-5), (2**20, 1e-3))]
MEASURED = [
    measured("AllReduce", 2**10, 1e-4, own=True),
    measured("AllReduce Ring", 2**10, 2e-4),
    measured("AllReduce", 2**20, 3e-3, own=True),
    measured("AllReduce Ring", 2**20, 1e-3),
    measured("Broadcast", 2**20, 2e-3),
    measured("AllGather", 2**20, 2e-3),
]


def test_bandwidths_equal_nccl_tests_and_are_compared_with_the_socket() -> None:
    rates = {(one.name, one.bytes): one.bandwidth for one in collectives(MEASURED)}
    mebi = 2**20
    assert rates["AllReduce", mebi] == pytest.approx(1.5 * mebi / 3e-3)
    assert rates["Broadcast", mebi] == pytest.approx(mebi / 2e-3)
    assert rates["AllGather", mebi] == pytest.approx(0.75 * mebi / 2e-3)
    table = collectives_page.overview(collectives(MEASURED), socket(LINK))
    assert table.rows[0] == ["AllReduce (the job's)", 0.1, 3.0, pytest.approx(0.5243, rel=1e-3), pytest.approx(50.0)]
    assert table.rows[-1][0] == "plain socket"
    sentences = [finding.sentence for finding in collectives_page.findings(collectives(MEASURED), socket(LINK), processors=2)]
    assert "50%" in sentences[0]
    assert "Ring is 3 times" in sentences[1]
    assert absent(sentences[2], "4 processes", "2 processors") == []


def test_the_log_of_a_pod_contains_the_same_events_as_a_run(tmp_path: Path) -> None:
    lines = [
        "some words",
        *(f"2026-11-22T00:00:00Z measurement {json.dumps(encode_event(one))}" for one in (*LINK, *MEASURED)),
        'measurement {"what": "coll',
    ]
    assert in_log(lines) == [*LINK, *MEASURED]
    log, page = tmp_path / "log", tmp_path / "page.html"
    log.write_text("\n".join(lines))
    ended = CliRunner().invoke(bench_collectives, [str(DDP), "--log", str(log), "-f", str(page)])
    assert ended.exit_code == 0, ended.output
    assert as_text(collectives_page.overview(collectives(MEASURED), socket(LINK))).splitlines()[1] in ended.output
    assert "AllReduce Ring" in page.read_text()


def test_the_manifest_for_a_cluster_is_a_valid_job() -> None:
    printed = CliRunner().invoke(bench_collectives, [str(DDP), "--manifest", "--largest", "1"]).output
    job = parse_job(printed, source="printed")
    assert job.spec.trainer.task == "collectives"
    assert job.spec.trainer.config["sizes"] == [2**10, 2**12, 2**14, 2**16, 2**18, 2**20]


def test_costs_are_computed_from_measurements() -> None:
    steps = [
        StepMeasurement(samples=n, processes=1, median=0.01 + 0.001 * n, peak_bytes=100 + n, gradient_bytes=8, state_bytes=24)
        for n in (8, 16, 32)
    ]
    link = link_of([measured("AllReduce", 1000, 0.002, world=2), measured("AllReduce", 3000, 0.004, world=2)])
    measured_costs = costs({1: steps}, link, processors=2)
    assert measured_costs.steps[1](64) == pytest.approx(0.074)
    assert measured_costs.memory(64) == pytest.approx(164)
    assert measured_costs.link(5000) == pytest.approx(0.006)
    assert (measured_costs.gradient_bytes, measured_costs.state_bytes) == (8, 24)
