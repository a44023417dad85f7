"""`muster run`: the job on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.refusal import RefusalError

NOT_SAVED = 22


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option("--resume", is_flag=True, help="Go on with the run that the run directory holds.")
@click.option("--fresh", is_flag=True, help="Move that run aside, to <run directory>.1 and so on, and start over.")
@click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/<job name>.")
@click.option("--ports", metavar="FIRST-LAST", help="Use only ports of this range; default: any that are free.")
@click.option("--set", "settings", metavar="FIELD=VALUE", multiple=True, help="Set a field of the job: spec.trainer.config.epochs=3.")
@click.option("--logs", "--verbose", "-v", "logs", is_flag=True, help="Show what the replicas print.")
@click.option("--quiet", "-q", is_flag=True, help="No progress; only what happened.")
def run(
    *,
    job: str,
    resume: bool,
    fresh: bool,
    run_dir: Path | None,
    ports: str | None,
    settings: tuple[str, ...],
    logs: bool,
    quiet: bool,
) -> int:
    """Runs the job in JOB.YAML on this machine, each replica as a process group.

    Replicas run in the current directory; a script is looked for there, then beside the job file, whose folder is on the
    Python path. Ctrl-C saves a checkpoint and ends; a second Ctrl-C ends at once.

    \b
    Exit codes: 0 succeeded, 10 the training code failed, 11 cannot run as written,
    20 broke too often, 21 stopped and saved, 22 stopped and not saved,
    30 a named checkpoint is damaged, 31 storage is full or unreachable.
    """
    from muster.local.errors import RunError
    from muster.local.session import RunRequest, run_file

    if resume and fresh:
        raise click.UsageError("--resume goes on with a run, --fresh starts over: give one of them")
    request = RunRequest(job, resume, fresh, run_dir, ports, settings, logs, quiet)
    try:
        return run_file(request)
    except RunError as error:
        raise RefusalError(str(error), error.code) from error
    except KeyboardInterrupt:
        click.echo("stopped before anything ran", err=True)
        return NOT_SAVED
