"""`muster schema`: the JSON schema of a job file, for editors."""

from __future__ import annotations

import click


@click.command()
def schema() -> None:
    """Prints the JSON schema of a job file, for editors and other programs. It includes the strategies that are installed here."""
    from muster.admission.job_schema import as_text, job_schema
    from muster.strategies.registry import STRATEGIES

    click.echo(as_text(job_schema(list(STRATEGIES.values()))), nl=False)
