"""Reports of run directories of `muster run`."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muster.api.status import TrainingJobStatus
from muster.cli.report import page_of_run, report
from muster.local.event_files import events_in
from muster.tools.measure.figures import figures_of
from muster.tools.report.curves import compare
from muster.tools.report.history import History, ReportError, history_of, read_history
from muster.tools.report.page import Page, Table, as_html
from muster.tools.report.plots import Bars, Lines
from muster.tools.report.run import Run, read_run, run_page, story
from muster.tools.report.timeline import Kind, Span, coarse, goodput, seconds_by_kind, timeline
from muster_contract.events import Commit, Evaluation, Resumed, Step
from tests.support.texts import absent

BEGIN = 1_795_260_000.0


def step(number: int, *, attempt: int = 0, end: float, seconds: float = 1.0, loss: float = 0.5) -> Step:
    return Step(attempt=attempt, step=number, time=end, seconds=seconds, loss=str(loss), loss_hex=loss.hex(), samples=64)


def history(steps: list[Step], *, commits: list[Commit] | None = None, spans: dict[int, tuple[float, float]]) -> History:
    return History(steps=tuple(steps), commits=tuple(commits or ()), starts=(), evaluations=(), fingerprints=(), attempt_spans=spans)


BROKEN = history(
    [step(1, end=3), step(2, end=4.5), step(2, attempt=1, end=9), step(3, attempt=1, end=10)],
    commits=[Commit(attempt=0, step=2, time=3.5, seconds=0.25, blocked_seconds=0.25)],
    spans={0: (1, 4.5), 1: (7, 11)},
)


def test_a_repeated_step_counts_once_with_the_loss_of_the_later_attempt() -> None:
    assert [(s.attempt, s.step) for s in BROKEN.curve.values()] == [(0, 1), (1, 2), (1, 3)]
    assert [(s.attempt, s.step) for s in BROKEN.redone] == [(0, 2)]


def test_every_moment_of_a_broken_run_has_its_kind() -> None:
    assert seconds_by_kind(timeline(BROKEN, begin=0, end=11)) == {
        Kind.STARTING: 2.0,
        Kind.UNREPORTED: 0.0,
        Kind.PRODUCTIVE: 4.25,
        Kind.CHECKPOINT: 0.25,
        Kind.REDONE: 1.0,
        Kind.RECOVERING: 3.5,
        Kind.SUSPENDED: 0.0,
    }


def test_spans_that_are_too_short_to_see_are_joined() -> None:
    def span(kind: Kind, begin: float, end: float, attempt: int = 0) -> Span:
        return Span(kind, attempt, begin, end)

    work, save = Kind.PRODUCTIVE, Kind.CHECKPOINT
    spans = [span(work, 0, 5), span(save, 5, 5.1), span(work, 5.1, 9), span(save, 9, 11), span(work, 11, 11.2, attempt=1)]
    whole = [span(work, 0, 5), span(work, 5, 9), span(save, 9, 11), span(work, 11, 11.2, attempt=1)]
    assert coarse(spans, least=1.0) == whole
    assert coarse(spans, least=0.0) == spans
    many = [span(work if n % 2 else save, n, n + 1) for n in range(10_000)]
    assert len(coarse(many, least=10_000 / 2000)) <= 2000


def test_the_time_between_a_stopped_attempt_and_the_next_is_suspension() -> None:
    totals = seconds_by_kind(timeline(BROKEN, begin=0, end=11, suspended_after=[0]))
    assert (totals[Kind.SUSPENDED], totals[Kind.STARTING], totals[Kind.RECOVERING]) == (2.5, 3.0, 0.0)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 3), st.booleans()), min_size=1, max_size=30), st.floats(0, 10))
def test_the_parts_add_up_to_the_wall_time(executions: list[tuple[float, float, bool]], tail: float) -> None:
    now, number, attempt = 0.0, 0, 0
    steps, spans = [], {}
    for seconds, gap, breaks in executions:
        begin = now
        now += gap + seconds
        number += 1
        steps.append(step(number, attempt=attempt, end=now, seconds=seconds))
        first, _ = spans.get(attempt, (begin, now))
        spans[attempt] = (first, now)
        if breaks:
            attempt, number = attempt + 1, max(0, number - 2)
    totals = seconds_by_kind(timeline(history(steps, spans=spans), begin=0, end=now + tail))
    assert sum(totals.values()) == pytest.approx(now + tail)
    assert all(seconds >= 0 for seconds in totals.values())
    ratio = goodput(totals)
    assert ratio is not None
    assert 0 <= ratio <= 1


def test_a_program_that_reports_no_steps_has_no_goodput() -> None:
    totals = seconds_by_kind(timeline(history([], spans={0: (2, 10), 1: (12, 20)}), begin=0, end=20))
    assert (totals[Kind.STARTING], totals[Kind.UNREPORTED], totals[Kind.RECOVERING]) == (2, 16, 2)
    assert goodput(totals) is None


def test_curves_are_compared_bit_for_bit() -> None:
    one = history([step(1, end=1, loss=0.1), step(2, end=2, loss=0.3)], spans={0: (0, 2)})
    near = history([step(1, end=1, loss=0.1), step(2, end=2, loss=0.1 + 0.2)], spans={0: (0, 2)})
    assert compare(one, one).identical
    verdict = compare(one, near)
    assert (verdict.equal, verdict.first_difference, verdict.identical) == (1, 2, False)
    assert "1 of 2" in verdict.sentence()


def test_the_history_has_the_steps_and_saves_of_single_ranks_once() -> None:
    own = [step(12, end=12), step(13, end=13)]
    added = [replace(step(number, end=14), rank=rank) for number, rank in ((14, 1), (13, 2), (14, 3))]
    saved = [Commit(rank=rank, step=number, path=f"rescue-{number}", time=15) for number, rank in ((14, 1), (13, 2))]
    found = history_of([*own, *added, *saved, step(15, attempt=1, end=20)])
    assert [(each.step, each.rank) for each in found.steps] == [(12, 0), (13, 0), (14, 1), (15, 0)]
    assert [(each.step, each.rank) for each in found.commits] == [(14, 1), (13, 2)]
    assert found.redone == ()


def test_a_step_that_a_later_attempt_only_reports_again_is_not_redone() -> None:
    """A rank that waits for attempt 1 saves step 2 and reports it. Attempt 2 resumes there, and attempt 3 resumes at step 1."""
    waiting = replace(step(2, attempt=1, end=4), rank=1)
    starts = [Resumed(rank=0, attempt=attempt, step=done, time=time) for attempt, done, time in ((0, 0, 0.5), (2, 2, 5), (3, 1, 8))]
    again = [step(2, attempt=2, end=6), step(3, attempt=2, end=7)]
    redone = [step(2, attempt=3, end=9), step(3, attempt=3, end=10)]
    found = history_of([starts[0], step(1, end=1), step(2, end=2), waiting, *starts[1:], *again, *redone])
    assert [(each.attempt, each.step) for each in found.steps] == [(0, 1), (0, 2), (2, 3), (3, 2), (3, 3)]
    assert [(each.attempt, each.step) for each in found.redone] == [(0, 2), (2, 3)]


def test_the_step_that_rank_0_resumes_from_counts() -> None:
    """Rank 1 of an own loop may read a commit that rank 0 has made since it resumed."""
    starts = [Resumed(rank=rank, attempt=1, step=done, time=time) for rank, done, time in ((0, 1, 4), (1, 3, 6.5))]
    again = [step(number, attempt=1, end=4 + number / 2) for number in (2, 3, 4)]
    found = history_of([Resumed(rank=0, attempt=0, step=0, time=0.5), *(step(each, end=each) for each in (1, 2, 3)), *starts, *again])
    assert [each.step for each in found.redone] == [2, 3]


def test_runs_of_different_length_are_not_identical() -> None:
    one = history([step(1, end=1)], spans={0: (0, 1)})
    two = history([step(1, end=1), step(2, end=2)], spans={0: (0, 2)})
    assert not compare(one, two).identical
    assert compare(one, two).missing == 1


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that lost worker-1 after step 3, continued from step 2 and ended at step 4. A kill cut its last line."""
    directory = tmp_path / "digits"
    losses = {0: [(1, 2.0), (2, 1.5), (3, 1.25)], 1: [(3, 1.25), (4, 1.0)]}
    for attempt, executions in losses.items():
        folder = directory / "attempts" / str(attempt) / "worker-0"
        folder.mkdir(parents=True)
        base = {"rank": 0, "role": "worker", "index": 0, "attempt": attempt}
        begin = BEGIN + 10 * attempt
        skipped = [{"path": "step-00000003-x", "reason": "<b>damaged</b>"}] if attempt else []
        events = [
            {
                "event": "fingerprint",
                "time": begin,
                "framework": "torch",
                "version": "2.15.0",
                "python": "3.11",
                "devices": ["cpu"],
                "host": "here",
            },
            {
                "event": "resumed",
                "time": begin + 1,
                "committedStep": 2 if attempt else None,
                "step": 2 * attempt,
                "path": None,
                "skipped": skipped,
            },
        ]
        events += [
            {
                "event": "step",
                "time": begin + 1 + n,
                "step": n,
                "totalSteps": 4,
                "epoch": 0,
                "loss": str(loss),
                "lossHex": loss.hex(),
                "samples": 64,
                "seconds": 0.5,
            }
            for n, loss in executions
        ]
        events += [{"event": "evaluation", "time": begin + 8, "step": 4, "metrics": {"accuracy": 0.975}}] * attempt
        (folder / "events.jsonl").write_text("".join(json.dumps(base | event) + "\n" for event in events) + '{"event": "st')
    status = {
        "phase": "Succeeded",
        "attempt": 1,
        "admittedTime": "2026-11-21T10:00:00Z",
        "attempts": [
            {
                "attempt": 0,
                "startTime": "2026-11-21T10:00:00Z",
                "endTime": "2026-11-21T10:00:05Z",
                "reason": "ProcessKilled",
                "class": "Infrastructure",
                "replica": "worker-1",
                "message": "rank 1 was ended by SIGKILL",
            },
            {"attempt": 1, "startTime": "2026-11-21T10:00:10Z"},
        ],
    }
    (directory / "status.json").write_text(json.dumps(TrainingJobStatus.from_wire(status).wire()))
    (directory / "job.yaml").write_text("kind: TrainingJob\n")
    return directory


def test_the_page_has_the_story_and_needs_no_other_file(run_dir: Path) -> None:
    run = read_run(run_dir)
    page = as_html(run_page(run, against=run))
    assert absent(page, "worker-1", "rank 1 was ended by SIGKILL") == []
    assert "checkpoint of step 2" in page
    assert "97.50%" in page
    assert "all 4 losses are equal bit for bit" in page
    assert page.count("<figure") == 4
    assert "src=" not in page
    assert 'href="http' not in page.replace("xmlns", "")


def test_the_text_of_a_process_cannot_become_markup(run_dir: Path) -> None:
    assert "<b>damaged</b>" not in as_html(run_page(read_run(run_dir)))


def test_a_browser_runs_only_the_scripts_of_the_plots(run_dir: Path) -> None:
    page = as_html(run_page(read_run(run_dir)))
    policy = re.findall(r"sha256-[^']+", unescape(page[: page.index("<title>")]))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert [f"sha256-{b64encode(sha256(each.encode()).digest()).decode()}" for each in scripts] == policy
    assert len(policy) == 2


def test_an_attempt_of_a_few_steps_has_a_line_of_throughput(run_dir: Path) -> None:
    (throughput,) = next(section.parts for section in run_page(read_run(run_dir)).sections if section.title == "Throughput")
    assert isinstance(throughput, Lines)
    assert [len(line.points) for line in throughput.lines] == [3, 2]


def test_the_story_names_skipped_checkpoints(run_dir: Path) -> None:
    assert any("skipped checkpoint step-00000003-x" in line for line in story(read_run(run_dir)))


def test_a_folder_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no events"):
        read_history(tmp_path)
    with pytest.raises(ReportError, match="no such run directory"):
        read_history(tmp_path / "nowhere")


def test_a_run_without_a_step_is_refused(run_dir: Path) -> None:
    for path in run_dir.glob("attempts/*/*/events.jsonl"):
        path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ReportError, match="the run did no training step"):
        read_run(run_dir)


def test_the_metrics_of_the_trainer_are_shown_in_words(run_dir: Path) -> None:
    path = run_dir / "attempts" / "1" / "worker-0" / "events.jsonl"
    path.write_text(path.read_text().replace('{"accuracy"', '{"stalenessMost": 3, "accuracy"'))
    page = as_html(run_page(read_run(run_dir)))
    assert "most staleness in updates 3, accuracy 0.975" in page
    assert "stalenessMost" not in page


WHOLE: list[dict[str, object]] = [
    {
        "event": "step",
        "step": 5,
        "totalSteps": 9,
        "epoch": 0,
        "loss": "0.5",
        "lossHex": "0x1p-1",
        "samples": 64,
        "seconds": 0.5,
        "inputSeconds": 0.1,
    },
    {"event": "commit", "step": 5, "seconds": 0.5, "blockedSeconds": 0.1, "bytes": 10, "reason": "Periodic"},
    {"event": "resumed", "committedStep": 2, "step": 2, "path": "p", "skipped": [{"path": "p", "reason": "damaged"}]},
    {"event": "evaluation", "step": 5, "metrics": {"accuracy": 0.5}},
    {"event": "fingerprint", "framework": "torch", "version": "2", "python": "3", "devices": ["cpu"], "host": "here"},
    {"event": "measurement", "what": "training", "seconds": 2.0, "ownSeconds": 1.0, "peakBytes": 1000},
]
ODD = [
    None,
    True,
    "",
    "x",
    "\x1b[2J",
    "\ud800",
    -1,
    0,
    0.5,
    2**53,
    10**400,
    1e300,
    1e-300,
    float("nan"),
    float("inf"),
    [],
    [None],
    [{}],
    {},
]
ODD += [{"\x1b": 1.0}, {"a": "x"}, {"a": None}, [{"path": [], "reason": {}}]]


@st.composite
def events(draw: st.DrawFn) -> dict[str, object]:
    """An event of a program: some of its fields are missing or wrong."""
    event = dict(draw(st.sampled_from(WHOLE))) | {
        "rank": 0,
        "role": "worker",
        "index": 0,
        "attempt": draw(st.integers(0, 2)),
        "time": BEGIN + 30,
    }
    for name in draw(st.lists(st.sampled_from(sorted(event)), max_size=4, unique=True)):
        if draw(st.booleans()):
            del event[name]
        else:
            event[name] = draw(st.sampled_from(ODD))
    return event


STEP = {"rank": 0, "role": "worker", "index": 0, "attempt": 0, "time": BEGIN + 30, "event": "step", "step": 5}


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(events(), min_size=1, max_size=12))
@example([{**STEP, "loss": 1e300}, {**STEP, "step": 6, "loss": 1e-300}, {**STEP, "step": 7, "loss": -1e300}])
@example([{**STEP, "event": "evaluation", "metrics": {"\x1b]0;owned\x07": 1.0}}])
def test_events_with_missing_or_wrong_fields_do_not_prevent_the_page(run_dir: Path, written: list[dict[str, object]]) -> None:
    lines = [json.dumps(event) + "\n" for event in [STEP, *written]]
    (run_dir / "attempts" / "0" / "worker-0" / "events.jsonl").write_text("".join(lines))
    (run_dir / "attempts" / "1" / "worker-0" / "events.jsonl").write_text("")
    run = read_run(run_dir)
    page = run_page(run, against=run)
    text = as_html(replace(page, figures={**(page.figures or {}), **figures_of(run).shown()}))
    assert all(letter in "\n\t" or ord(letter) >= 32 for letter in text)


def test_an_event_without_a_figure_counts_without_it(run_dir: Path) -> None:
    path = run_dir / "attempts" / "1" / "worker-0" / "events.jsonl"
    path.write_text("".join(json.dumps({**STEP, "attempt": 1, "step": step}) + "\n" for step in (3, 4)))
    run = read_run(run_dir)
    assert max(run.history.curve) == 4
    assert any(line.endswith(" after 4 steps.") for line in story(run))
    assert compare(run.history, run.history).compared == 2


def test_control_characters_of_a_process_are_escaped(run_dir: Path) -> None:
    dirty, escaped = "\x1b]0;owned\x07", "\\x1b]0;owned\\x07"
    path = run_dir / "attempts" / "1" / "worker-0" / "events.jsonl"
    text = (
        path.read_text()
        .replace('"accuracy"', json.dumps(dirty))
        .replace('"here"', json.dumps(dirty))
        .replace("step-00000003-x", json.dumps(dirty)[1:-1])
    )
    path.write_text(text)
    page = as_html(run_page(read_run(run_dir)))
    assert "\x1b" not in page
    assert "\x07" not in page
    assert page.count(escaped) == 5


def test_a_loss_that_is_not_a_number_is_drawn_as_a_gap(run_dir: Path) -> None:
    path = run_dir / "attempts" / "1" / "worker-0" / "events.jsonl"
    path.write_text(path.read_text().replace('"loss": "1.0"', '"loss": "nan"'))
    assert "after 4 steps with loss nan" in as_html(run_page(read_run(run_dir)))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("status.json", lambda path: path.write_text("{")),
        ("status.json", lambda path: path.write_text("[" * 100_000)),
        ("status.json", lambda path: path.write_text('{"phase": 5}')),
        ("status.json", os.mkfifo),
        ("job.yaml", os.mkfifo),
        ("job.yaml", lambda path: path.write_bytes(b"\xff")),
    ],
)
def test_a_run_without_a_status_or_a_job_is_refused(run_dir: Path, name: str, make: Callable[[Path], object]) -> None:
    (run_dir / name).unlink()
    make(run_dir / name)
    with pytest.raises(ReportError, match=r"not complete: .+\Z"):
        read_run(run_dir)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_events_that_are_not_a_file_are_left_out(run_dir: Path, make: Callable[[Path], object]) -> None:
    before = read_run(run_dir).history
    (run_dir / "attempts/7/worker-0").mkdir(parents=True)
    make(run_dir / "attempts/7/worker-0/events.jsonl")
    assert read_run(run_dir).history == before


def test_a_link_in_a_run_directory_does_not_lead_the_report_to_another_file(run_dir: Path, tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine")
    (run_dir / "report.html").symlink_to(victim)
    refused = CliRunner().invoke(report, [str(run_dir)])
    assert refused.exit_code == 11
    assert absent(refused.output, "report.html", "is a link", "--file") == []
    assert victim.read_text() == "mine"
    assert CliRunner().invoke(report, [str(run_dir), "--file", str(run_dir / "report.html")]).exit_code == 0, "the user named it"
    assert "<html" in victim.read_text()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", ["\n", "{\n", "\0"])
def test_a_large_file_without_events_takes_little_time_and_memory(line: str) -> None:
    text = "x\n" + line * (32 << 20)
    tracemalloc.start()
    try:
        assert list(events_in(text)) == []
        assert tracemalloc.get_traced_memory()[1] < 2 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(60)
def test_a_sparse_file_of_events_takes_little_time_and_memory(run_dir: Path) -> None:
    before = read_history(run_dir)
    sparse = run_dir / "attempts/7/worker-0/events.jsonl"
    sparse.parent.mkdir(parents=True)
    with sparse.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        assert read_history(run_dir) == before
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()


def test_the_page_of_a_run_with_very_many_attempts_shows_the_newest(run_dir: Path) -> None:
    run = read_run(run_dir)
    steps = [step(number, attempt=number, end=float(number)) for number in range(1, 5001)]
    many = replace(run, history=history(steps, spans={each.attempt: (each.time - 1, each.time) for each in steps}))
    page = run_page(many)
    rows = {section.title: section.parts[0] for section in page.sections}
    attempts, bars, throughput = rows["Attempts"], rows["Where the time went"], rows["Throughput"]
    assert isinstance(attempts, Table)
    assert isinstance(bars, Bars)
    assert isinstance(throughput, Lines)
    assert [row[0] for row in attempts.rows] == list(range(4901, 5001))
    assert len(bars.bars) == len(throughput.lines) == len(throughput.marks) == 100
    assert "The plots and this table show the newest 100 of 5000 attempts." in page.sections[4].parts


def run_of(recorded: History, *, phase: str = "Succeeded", name: str = "digits") -> Run:
    return Run(name, "", TrainingJobStatus.from_wire({"phase": phase}), recorded)


def part(page: Page, title: str) -> Any:
    return next(section.parts[0] for section in page.sections if section.title == title)


def test_the_throughput_of_a_program_that_reports_no_samples_is_in_steps() -> None:
    posted = [replace(step(number, end=2.0 * number, seconds=0.0), samples=0) for number in (1, 2, 4)]
    plot = part(run_page(run_of(history(posted, spans={0: (1, 8)}))), "Throughput")
    assert plot.y_label == "steps/s"
    assert [rate for _, rate in plot.lines[0].points][1:] == [0.5, 0.5]


def test_the_curve_of_the_other_run_is_drawn_with_its_name() -> None:
    other = run_of(history([step(1, end=3, loss=0.25)], spans={0: (1, 3)}), name="other")
    plot = part(run_page(run_of(BROKEN), against=other), "Loss")
    assert [(line.label, list(line.points)) for line in plot.lines if line.label == "other"] == [("other", [(1, 0.25)])]


def test_an_evaluation_has_the_figures_of_the_model_only() -> None:
    trained = {"train_runtime": 3.0, "train_samples_per_second": 9.0, "total_flos": 1e9, "train_loss": 0.4}
    evaluations = (
        Evaluation(time=4, step=3, metrics={"eval_loss": 0.5, "eval_runtime": 0.1}),
        Evaluation(time=5, step=3, metrics=trained),
    )
    run = run_of(replace(BROKEN, evaluations=evaluations))
    assert story(run)[-1] == "Evaluation at step 3: eval_loss 0.5."
    assert [name for name in run_page(run).figures or {} if "run" in name or "flos" in name or "train" in name] == []
    assert figures_of(run).metrics == {"eval_loss": 0.5}


def test_a_page_without_the_first_attempts_says_so_and_has_no_totals() -> None:
    page = run_page(run_of(history([step(441, attempt=1, end=9)], spans={1: (7, 11)})))
    assert "Steps 1 to 440 are missing" in page.findings[0].sentence
    assert (page.figures or {})["attempts"] == "2"
    assert {"steps redone", "goodput", "wall time"}.isdisjoint(page.figures or {})


def test_the_page_of_a_run_that_goes_on_has_no_end() -> None:
    assert " to " in run_page(run_of(BROKEN)).subtitle
    assert run_page(run_of(BROKEN, phase="Running")).subtitle.startswith("Began")


def test_a_run_that_did_no_step_has_a_page_with_its_job_and_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "some-folder"
    (folder / "attempts/0/worker-0").mkdir(parents=True)
    (folder / "attempts/0/worker-0/log.txt").write_text("ModuleNotFoundError: no such module")
    (folder / "status.json").write_text(json.dumps({"phase": "Failed", "message": "the program failed"}))
    (folder / "job.yaml").write_text("metadata: {name: digits}")
    page = as_html(page_of_run(folder, against=None))
    assert absent(page, "digits: Failed", "the program failed", "ModuleNotFoundError") == []
