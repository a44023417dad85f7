"""`muster init`: a first job file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from muster.cli.refusal import RefusalError

DEFAULT_FILE = Path("job.yaml")


@click.command()
@click.option("--from", "program", type=click.Path(path_type=Path, dir_okay=False), help="Your program, such as train.py. It is not run.")
@click.option("--name", help="Name of the job. Default: that of the program.")
@click.option("--strategy", help="Default: the one that fits the program.")
@click.option("--workers", type=click.IntRange(1, 4096), help="Number of workers. Default: 2, or 1 if the program joins no others.")
@click.option(
    "-f", "--file", "output", type=click.Path(path_type=Path), default=DEFAULT_FILE, help="Default: job.yaml. - for standard output."
)
def init(*, program: Path | None, name: str | None, strategy: str | None, workers: int | None, output: Path) -> None:
    """Writes a job file with comments, from flags, or from answers if there are none.

    It looks in the program for torch.distributed, transformers, Lightning, Accelerate, TF_CONFIG, tf.distribute and JAX.
    """
    from dataclasses import replace

    from muster.admission.read import MAX_BYTES, parse_job
    from muster.api.problems import InvalidJobError, Problem
    from muster.local.files import content_of, open_regular
    from muster.tools.convert.draft import Found, draft, found_in
    from muster.tools.convert.job import ConvertError

    to_stdout = str(output) == "-"
    if not to_stdout and output.exists():
        raise RefusalError(f"{output} exists: name another file with --file")
    if program is None and name is None and strategy is None and workers is None and sys.stdin.isatty():
        answer = click.prompt("Your program, such as train.py (empty: the bundled task digits)", default="", show_default=False, err=True)
        program = Path(answer) if answer else None
    found = Found("DDP", "it is the usual one for PyTorch")
    if program is not None:
        try:
            found = found_in(content_of(program, MAX_BYTES).decode(), program.name)
        except OSError as error:
            raise RefusalError(f"--from {program}: cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, ConvertError, ValueError) as error:
            message = str(error) if isinstance(error, ConvertError) else "is not a Python program of at most 1 MiB in UTF-8"
            raise InvalidJobError([Problem(f"--from {program}", message)]) from None
    if strategy is not None:
        found = replace(found, strategy=strategy, because="you chose it")
    if name is None:
        name = re.sub(r"[^a-z0-9]+", "-", (program.stem if program else "digits").lower()).strip("-") or "job"
    text = draft(name, found, script=str(program) if program else None, workers=workers or found.workers)
    parse_job(text, source="the new job file")  # refuses a name, strategy or number of workers that cannot be
    if to_stdout:
        click.echo(text, nl=False)
        return
    try:
        with os.fdopen(open_regular(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RefusalError(f"{output}: cannot be written: {error.strerror}; name another file with --file") from error
    click.echo(f"Wrote {output}: {found.strategy}, because {found.because}. Check it with: muster validate {output}")
