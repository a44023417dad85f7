"""`muster compare`: one task under several strategies and world sizes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from muster.cli.job_file import presets_option
from muster.cli.prices import Prices, prices_option
from muster.cli.refusal import RefusalError

ALL_FAILED = 10


@click.command()
@click.argument("file", metavar="COMPARE.YAML", type=click.Path(path_type=Path))
@click.option("-f", "--file", "output", type=click.Path(path_type=Path, dir_okay=False), help="Default: compare.html in the run directory.")
@presets_option
@prices_option
@click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/<name of the file>.")
def compare(*, file: Path, output: Path | None, run_dir: Path | None, presets: Path | None, prices: Prices) -> int:
    """Runs the variants of a job that COMPARE.YAML lists, in turns on this machine, each of them twice.

    Shows their training time, speed-up, efficiency, communication, input stall, memory, loss and device-hours, as a table and
    as a page.

    Exit codes: 0 all variants ran, 10 one failed (its message is shown), 11 the file cannot be run as written.
    """
    from muster.cli.pages import write
    from muster.local.errors import RunError
    from muster.tools.measure.compare_page import comparison_page, comparison_table, findings
    from muster.tools.measure.comparison import read_comparison, run_all
    from muster.tools.report.page import as_text

    directory = run_dir or Path("runs") / file.stem
    try:
        comparison = read_comparison(file, presets)
        outcomes = run_all(comparison, directory, say=lambda text: click.echo(text, err=True))
    except RunError as error:
        raise RefusalError(str(error), error.code) from error
    click.echo(f"\n{as_text(comparison_table(outcomes, prices=prices))}")
    for finding in findings(outcomes):
        click.echo(finding.sentence)
    for one in outcomes:
        if one.figures is None:
            click.echo(f"\n{one.name}:\n{one.last_output}")
    subtitle = f"{comparison.job_file.name} in {len(outcomes)} variants, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    write(
        comparison_page(outcomes, title=f"Compared: {file.stem}", subtitle=subtitle, prices=prices),
        output,
        default=directory / "compare.html",
    )
    return ALL_FAILED if any(one.figures is None for one in outcomes) else 0
