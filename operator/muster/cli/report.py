"""`muster report`: a run as one HTML page."""

from __future__ import annotations

import webbrowser
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
    from muster.report.history import ReportError
    from muster.report.page import as_html
    from muster.report.run import read_run, run_page

    target = output or run_dir / "report.html"
    try:
        page = as_html(run_page(read_run(run_dir), against=read_run(against) if against else None))
        target.write_text(page, encoding="utf-8")
    except ReportError as error:
        raise RefusalError(str(error)) from error
    except OSError as error:
        raise RefusalError(f"{target}: cannot be written: {error.strerror}; choose another file with --output") from error
    click.echo(f"Wrote {target}")
    if open_browser:
        webbrowser.open(target.resolve().as_uri())
