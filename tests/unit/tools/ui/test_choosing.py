"""The list of jobs: search, filters, order and columns."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from muster.tools.ui.choosing import SHOWN_AT_ONCE, Choice, columns_of
from muster.tools.ui.job_rows import Listed, row_of
from muster.tools.ui.sources import LocalRuns
from tests.unit.tools.ui.test_pages import Browser, run_directory, visit

NOW = 1000.0
ROWS = [
    Listed("local", "-", "small", "DDP", "Succeeded", step=9, loss="0.5", created=10.0, ended=40.0, labels={"team": "a"}),
    Listed("cluster", "ml", "large", "FSDP", "Failed", step=100, loss="nan", created=20.0, ended=920.0, message="CUDA out of memory"),
    Listed("cluster", "ml", "new", "DDP", "Running", created=30.0, labels={"team": "b", "tier": "1"}, figures={"goodput": 0.9}),
]


def chosen(query: str, rows: list[Listed] = ROWS) -> list[str]:
    choice = Choice.of(parse_qsl(query))
    columns, _ = columns_of(rows, choice.columns)
    return [row.name for row in choice.ordered(filter(choice.has, rows), columns, NOW)]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["new", "large", "small"]),
        ("search=ML/", ["new", "large"]),
        ("search=memory+cuda", ["large"]),
        ("state=Failed", ["large"]),
        ("strategy=DDP&state=Running", ["new"]),
        ("label=team", ["new", "small"]),
        ("label=team=b,tier", ["new"]),
        ("label=team=c", []),
    ],
)
def test_jobs_are_found_by_words_state_strategy_and_labels(query: str, names: list[str]) -> None:
    assert chosen(query) == names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("sort=step", ["small", "large", "new"]),
        ("sort=-step", ["large", "small", "new"]),
        ("sort=loss", ["small", "large", "new"]),
        ("sort=-duration", ["new", "large", "small"]),
        ("sort=-goodput&column=goodput", ["new", "small", "large"]),
        ("sort=nonsense", ["small", "large", "new"]),
    ],
)
def test_jobs_without_a_value_come_last_in_either_order(query: str, names: list[str]) -> None:
    assert chosen(query) == names


def test_a_choice_survives_its_own_address() -> None:
    choice = Choice("a b", "Failed", "DDP", "team=x&y", "-loss", ("test accuracy",), "ml", 200)
    assert Choice.of(parse_qsl(urlsplit(choice.address(begin=200)).query)) == choice
    assert choice.sorted_by("loss") == choice.address(sort="loss")


def test_the_list_has_only_the_figures_that_were_chosen_as_columns() -> None:
    columns, names = columns_of(ROWS, ["goodput", "nonsense"])
    assert names == ["goodput"]
    assert [column.title for column in columns if column.title in ("goodput", "nonsense", "queued")] == ["goodput"]


def test_a_job_of_the_cluster_lasts_until_its_last_status() -> None:
    writes = [{"time": "2026-11-21T12:00:00Z", "subresource": "status"}, {"time": "2026-11-21T13:00:00Z"}]
    metadata = {"name": "a", "namespace": "b", "creationTimestamp": "2026-11-21T11:00:00Z", "managedFields": writes}
    row = row_of({"metadata": metadata, "spec": {}, "status": {"phase": "Succeeded"}})
    assert row.created is not None
    assert (row.ended or 0) - row.created == 3600


def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    for number in range(SHOWN_AT_ONCE + 1):
        run_directory(tmp_path / f"run-{number:03}")

    async def look(browser: Browser) -> None:
        first = await (await browser.get("/?sort=job")).text()
        assert (first.count("<tr>"), f"run-{SHOWN_AT_ONCE}" in first) == (1 + SHOWN_AT_ONCE, False)
        second = await (await browser.get(f"/?sort=job&begin={SHOWN_AT_ONCE}")).text()
        assert (second.count("<tr>"), f"run-{SHOWN_AT_ONCE}" in second) == (2, True)

    visit({"local": LocalRuns(tmp_path)}, look)


def test_a_list_without_jobs_names_the_first_command(tmp_path: Path) -> None:
    async def look(browser: Browser) -> None:
        assert "muster run examples/digits-ddp.yaml" in await (await browser.get("/")).text()
        run_directory(tmp_path / "digits")
        assert "muster run" not in await (await browser.get("/?search=nothing")).text()

    visit({"local": LocalRuns(tmp_path)}, look)


def test_the_list_follows_a_run_that_changes_and_one_that_goes(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "digits")

    async def look(browser: Browser) -> None:
        assert "Running, stopped" in await (await browser.get("/")).text()
        (run / "status.json").write_text('{"phase": "Succeeded"}')
        assert 'class="state succeeded"' in await (await browser.get("/")).text()
        (run / "job.yaml").unlink()
        assert "/jobs/local/-/digits" not in await (await browser.get("/")).text()

    visit({"local": LocalRuns(tmp_path)}, look)
