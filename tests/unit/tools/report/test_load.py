"""The plots of what the replicas of a run took of their machines."""

from __future__ import annotations

import json
from pathlib import Path

from muster.api.status import TrainingJobStatus
from muster.tools.report.history import history_of, read_history
from muster.tools.report.job import JobView, job_page
from muster.tools.report.load import MOST_LINES, load_sections
from muster.tools.report.page import Page, as_html
from muster.tools.report.plots import Lines
from muster.tools.report.run import Run, run_page
from muster_contract.events import Load, Step
from tests.unit.tools.report.test_recorded import leave, read

TITLE = "Load of the machines"


def load(time: float, cpus: float, *, index: int = 0, attempt: int = 0, gpu: float | None = None) -> Load:
    return Load(time=time, cpus=cpus, memory_bytes=3 << 30, role="worker", index=index, attempt=attempt, gpu_share=gpu)


def plots(loads: list[Load], *, begin: float = 0.0) -> dict[str, Lines]:
    [section] = load_sections(loads, begin=begin, most_attempts=100)
    return {plot.y_label: plot for plot in section.parts if isinstance(plot, Lines)}


def titles(page: Page) -> list[str]:
    return [section.title for section in page.sections]


def test_each_replica_has_a_line_and_each_attempt_a_part_of_it() -> None:
    found = plots([load(5, 1.5), load(6, 2.5), load(6, 0.5, index=10), load(9, 1.0, attempt=1), load(6, 0.25, index=2, gpu=0.5)], begin=4)
    assert list(found) == ["busy processors", "memory, GiB", "busy GPUs, %"]  # what was not measured has no plot
    lines = [(line.label, line.points) for line in found["busy processors"].lines]
    assert lines == [
        ("worker-0", [(1, 1.5), (2, 2.5)]),
        ("worker-0", [(5, 1.0)]),
        ("worker-2", [(2, 0.25)]),
        ("worker-10", [(2, 0.5)]),
    ]
    assert found["memory, GiB"].lines[0].points == [(1, 3.0), (2, 3.0)]
    assert [line.points for line in found["busy GPUs, %"].lines] == [[(2, 50.0)]]


def test_many_replicas_have_the_highest_the_mean_and_the_lowest_value() -> None:
    loads = [load(time, float(index), index=index) for index in range(4096) for time in (10, 11)]
    lines = plots(loads)["busy processors"].lines
    assert [line.label for line in lines] == ["highest of 4096 replicas", "mean", "lowest"]
    assert [{value for _, value in line.points} for line in lines] == [{4095.0}, {2047.5}, {0.0}]
    assert len(plots([load(1, 1.0, index=index) for index in range(MOST_LINES)])["busy processors"].lines) == MOST_LINES


def test_a_run_has_the_plots_and_its_times_are_those_of_its_processes() -> None:
    steps = [Step(time=at, step=number, loss="0.5") for number, at in enumerate((1.0, 2.0), 1)]
    history = history_of([*steps, load(1.5, 1.0), load(50, 1.0)])
    assert history.attempt_spans == {0: (1.0, 2.0)}
    page = run_page(Run(name="digits", job_yaml="", status=TrainingJobStatus(), history=history))
    assert TITLE in titles(page)
    assert "busy processors over seconds since the run began" in as_html(page)
    assert TITLE not in titles(run_page(Run(name="digits", job_yaml="", status=TrainingJobStatus(), history=history_of(steps))))


def test_a_program_that_reports_nothing_has_the_plots_too(tmp_path: Path) -> None:
    replica = tmp_path / "attempts" / "0" / "worker-0"
    replica.mkdir(parents=True)
    origin = {"role": "worker", "index": 0, "attempt": 0, "rank": 0}
    (replica / "events.jsonl").write_text(json.dumps({"event": "load", "time": 7.0, "cpus": 1.5, "memoryBytes": 1 << 30, **origin}) + "\n")
    history = read_history(tmp_path)
    assert TITLE in titles(job_page(JobView(name="run", state="Running", status=TrainingJobStatus(), history=history)))


def test_the_history_beside_the_checkpoints_has_the_load(tmp_path: Path) -> None:
    replica = leave(tmp_path / "default" / "digits")
    origin = {"role": "worker", "index": 0, "attempt": 0, "rank": 0}
    with (replica / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "load", "time": 7.0, "cpus": 1.5, "sentBytesPerSecond": 2e6, **origin}) + "\n")
    [measured] = read(tmp_path).history.loads
    assert (measured.cpus, measured.sent_bytes_per_second) == (1.5, 2e6)
