"""`muster report`: a run as one HTML page."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from pathlib import Path

import click

from muster.cli.refusal import RefusalError


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default: report.html in the run directory."
)
@click.option("--against", type=click.Path(path_type=Path), help="Another run directory, to hold this run's losses against.")
@click.option("--open", "open_browser", is_flag=True, help="Show the page in a browser.")
def report(run_dir: Path, output: Path | None, against: Path | None, open_browser: bool) -> None:
    """Writes what happened in RUN_DIR: loss with restarts marked, throughput, timeline of attempts, goodput."""
    from muster.cli.pages import write
    from muster.measure.figures import figures_of
    from muster.report.history import ReportError
    from muster.report.run import read_run, run_page

    target = output or run_dir / "report.html"
    try:
        run = read_run(run_dir)
        page = run_page(run, against=read_run(against) if against else None)
    except ReportError as error:
        raise RefusalError(str(error)) from error
    write(replace(page, figures={**(page.figures or {}), **figures_of(run).shown()}), target)
    if open_browser:
        webbrowser.open(target.resolve().as_uri())
