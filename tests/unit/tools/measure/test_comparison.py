"""Comparisons: their checks before the first run, and their results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.api.problems import InvalidJobError
from muster.cli.main import cli
from muster.local.errors import RunError
from muster.tools.measure.compare_page import Outcome, comparison_page, comparison_table, findings
from muster.tools.measure.comparison import read_comparison
from muster.tools.measure.figures import RunFigures, interval_of_median, joined
from muster.tools.measure.measuring import RecordingDisplay
from muster.tools.report.page import as_html, as_text
from tests.support.texts import absent

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_each_variant_is_the_job_with_the_fields_of_the_variant() -> None:
    jobs = read_comparison(EXAMPLES / "compare-digits.yaml").jobs
    assert list(jobs)[:3] == ["DDP x1", "DDP x2", "FSDP x2"]
    assert jobs["FSDP x2"].spec.strategy == "FSDP"
    assert jobs["FSDP x2"].spec.trainer.settings.epochs == 8
    assert jobs["DDP x1"].spec.roles["worker"].replicas == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variants: [{strategy: DPP}]", r"variants\[0\]: spec.strategy: .* did you mean DDP"),
        ("variants: [{}, {strategy: DDP, replicas: 64}]", r"variants\[1\].replicas: .* 64 processes, but this machine"),
        ("- variants", "is not a comparison"),
        ("variants: [{workers: 2}]", r"variants\[0\].workers: is not a field"),
        ("variants: [{}, {}]", r"variants\[1\].name: .* another variant"),
        ("rounds: 0\nvariants: [{}]", r"rounds: "),
        ("variants: []", "variants: must not be empty$"),
        ("variants: [{name: a b}, {name: A-b}]", r"variants\[1\].name: 'A-b' and 'a b' would share the folder a-b"),
        (r'variants: [{name: "a\e[2J"}]', r"variants\[0\].name: 'a\\x1b\[2J' has a character that does not print"),
        ("variants: [{name: '--'}]", r"variants\[0\].name: '--' has no letter or digit"),
        ("variants: [{strategy: Mirrored}]", r"variants\[0\]: spec.roles.worker.replicas: must be 1 with this strategy"),
        ("variants: [{set: {spec.batch.globalsize: 3}}]", r"variants\[0\]: spec.batch.globalsize: .* globalSize"),
    ],
)
def test_an_invalid_comparison_is_refused_with_the_name_of_the_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "compare.yaml"
    file.write_text(text if text.startswith("-") else f"job: {EXAMPLES / 'digits-ddp.yaml'}\n{text}\n")
    with pytest.raises((InvalidJobError, RunError), match=message):
        read_comparison(file)


def test_the_message_for_an_empty_file_names_the_fields_of_a_comparison(tmp_path: Path) -> None:
    file = tmp_path / "compare.yaml"
    file.write_text("# nothing\n")
    with pytest.raises(InvalidJobError, match=r"is empty.*job and variants"):
        read_comparison(file)


def test_lines_that_are_shown_after_a_run_have_no_control_characters() -> None:
    display = RecordingDisplay()
    display.line("worker-0: \x1b]0;title\x07\nsecond line \u202e")
    assert display.lines == ["worker-0: \\x1b]0;title\\x07\nsecond line \\u202e"]


def test_names_of_variants_may_have_letters_of_any_script(tmp_path: Path) -> None:
    file = tmp_path / "compare.yaml"
    file.write_text(f"job: {EXAMPLES / 'digits-ddp.yaml'}\nvariants: [{{name: 一}}, {{name: 二}}]\n", encoding="utf-8")
    assert list(read_comparison(file).jobs) == ["一", "二"]


def figures(processes: int, seconds: float, communication: float | None, **metrics: float) -> RunFigures:
    return RunFigures(
        processes, seconds / 100, (seconds / 101, seconds / 99), 1000.0, seconds, communication, 0.1, 2**30, 0.25, metrics, 0.9
    )


OUTCOMES = [
    Outcome("one", "DDP", figures(1, 20.0, 0.0)),
    Outcome("lost", "FSDP", None, "rank 1: <b>broke</b>"),
    Outcome("two", "DDP", figures(2, 12.5, 0.4)),
]


def test_speed_up_and_efficiency_are_relative_to_the_first_successful_variant() -> None:
    table = comparison_table(OUTCOMES)
    two = dict(zip(table.head, table.rows[2], strict=True))
    assert (two["speed-up"], two["efficiency %"], two["communication %"], two["memory MiB"]) == (1.6, 80.0, 40.0, 1024)
    assert table.rows[1] == ["lost", "failed"]
    assert table.numeric(1)
    lines = as_text(table, width=20).splitlines()
    assert lines[-1].split()[:4] == ["two", "2", "12.5", "1.60"]  # no word is broken in a narrow terminal


def test_a_run_costs_its_device_hours_at_each_price() -> None:
    once, again = (replace(figures(2, 12.5, 0.4), device_hours=hours) for hours in (0.5, 1.5))
    table = comparison_table([OUTCOMES[0], replace(OUTCOMES[2], figures=joined([once, again]))], prices=[("", 2.0), ("spot", 0.5)])
    one, two = (dict(zip(table.head, row, strict=True)) for row in table.rows)
    names = ("device-h a run", "cost a run", "cost a run, spot")
    assert [[each[name] for name in names] for each in (one, two)] == [[None, None, None], [1.0, 2.0, 0.5]]
    assert not [head for head in comparison_table(OUTCOMES).head if head.startswith("cost")]


@pytest.mark.parametrize("price", ["cheap", "spot=", "-1", "nan", "spot=1e10"])
def test_a_price_that_is_none_is_refused_with_an_example(price: str) -> None:
    done = CliRunner().invoke(cli, ["compare", str(EXAMPLES / "compare-digits.yaml"), "--price", price])
    assert done.exit_code != 0
    assert absent(done.output, price, "write a number from 0 to 1e9") == []


def test_metrics_of_the_trainer_have_readable_column_heads() -> None:
    table = comparison_table([Outcome("one", "RPC", figures(1, 20.0, 0.0, accuracy=0.5, stalenessMean=1.5))])
    assert table.head[-2:] == ["accuracy", "mean staleness in updates"]


def test_the_page_names_the_fastest_variant_and_the_causes_of_failures() -> None:
    page = as_html(comparison_page(OUTCOMES, title="Compared", subtitle=""))
    assert absent(page, "two trains fastest", "125 ms a step", "1.60 times") == []
    assert "rank 1: &lt;b&gt;broke" in page
    assert '<table class="dense">' in page
    assert '<td>lost</td><td class="bad" colspan="12">failed</td>' in page
    assert page.count("<figure") == 2


def verdict(*done: RunFigures) -> str:
    return findings([Outcome(name, "DDP", each) for name, each in zip("abc", done, strict=False)])[0].sentence


def test_the_steps_decide_which_variant_is_fastest_and_not_the_pauses_between_them() -> None:
    slow_steps, pauses = figures(1, 20.0, 0.0), replace(figures(1, 10.0, 0.0), training_seconds=30.0)
    assert verdict(slow_steps, pauses).startswith("b trains fastest: 100 ms a step, 2.00 times as fast as a")
    twice_the_batch = replace(figures(1, 30.0, 0.0), step_samples=64)
    assert verdict(replace(slow_steps, step_samples=32), twice_the_batch).startswith("b trains fastest")


def test_no_variant_is_fastest_if_the_intervals_of_the_steps_overlap() -> None:
    one, other = figures(1, 20.0, 0.0), figures(1, 20.3, 0.0)
    assert verdict(one, other).startswith("Too short or too noisy to tell whether a or b")
    assert verdict(other, one).startswith("Too short or too noisy to tell whether b or a")
    assert verdict(one, other, figures(1, 10.0, 0.0)).startswith("c trains fastest")
    assert "do not report" in verdict(one, replace(other, step_seconds=0.0))


def test_a_difference_that_another_round_does_not_show_is_no_result() -> None:
    """The same job twice, while other work slowed the machine down in three of four runs."""
    slow, fast = figures(1, 84.0, 0.0), figures(1, 16.0, 0.0)
    assert verdict(slow, fast).startswith("b trains fastest")
    assert verdict(joined([slow, fast]), joined([fast, slow])).startswith("Too short or too noisy")
    assert verdict(joined([slow, slow]), joined([fast, fast])).startswith("b trains fastest: 160 ms a step, 5.25 times")


def test_the_figures_of_several_rounds_are_means_and_their_interval_contains_all() -> None:
    both = joined([figures(2, 10.0, 0.2, accuracy=0.5), figures(2, 20.0, None, accuracy=0.5)])
    assert (both.training_seconds, both.communication, both.metrics) == (15.0, 0.2, {"accuracy": 0.5})
    assert both.interval == (10.0 / 101, 20.0 / 99)


def test_the_parts_of_the_training_time_add_up() -> None:
    parts = figures(2, 12.5, 0.4).parts()
    assert sum(parts.values()) == pytest.approx(12.5)
    assert parts["waiting for others"] == pytest.approx(0.4 * 0.9 * 12.5)


def test_the_interval_of_a_median_contains_it_and_narrows_with_more_values() -> None:
    few, many = interval_of_median(range(11)), interval_of_median(range(1001))
    assert few[0] < 5 < few[1]
    assert 468 <= many[0] < 500 < many[1] <= 532
    assert interval_of_median([3.0]) == (3.0, 3.0)
