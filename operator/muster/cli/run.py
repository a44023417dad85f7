"""`muster run`: the job on this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from muster.cli.job_file import presets_option, set_option
from muster.cli.on_jobs import output_option
from muster.cli.refusal import RefusalError

STOPPED = 21


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option("--resume", is_flag=True, help="Continue the run in the run directory.")
@click.option("--fresh", is_flag=True, help="Move that run aside, to <run directory>.1 and so on, and start over.")
@click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/<job name>.")
@click.option("--ports", metavar="FIRST-LAST", help="Use only ports of this range; default: any that are free.")
@set_option
@presets_option
@click.option("--logs", "--verbose", "-v", "logs", is_flag=True, help="Show what the replicas print.")
@click.option("--quiet", "-q", is_flag=True, help="No progress; only what happened.")
@output_option("text", "json", default="text")
def run(
    *,
    job: str,
    resume: bool,
    fresh: bool,
    run_dir: Path | None,
    ports: str | None,
    settings: tuple[str, ...],
    presets: Path | None,
    logs: bool,
    quiet: bool,
    output: str,
) -> int:
    """Runs the job in JOB.YAML on this machine, each replica as a process group.

    Replicas run in the current directory. Muster looks for a script there, and then in the folder of the job file, which is
    on the Python path. Ctrl-C saves a checkpoint and ends the run. A second Ctrl-C ends it at once.

    With -o json, standard output has the job with its status at the end, as muster get -o json prints it, and nothing else.

    \b
    Exit codes: 0 succeeded, 10 the training code failed, 11 cannot run as written,
    20 failed too often, 21 stopped with no step lost, 22 stopped with steps lost,
    30 a named checkpoint is damaged, 31 storage is full or cannot be reached,
    32 an input cannot be fetched now, 33 an input does not exist or may not be read.
    """
    from muster.local.errors import RunError
    from muster.local.rundir import STOP
    from muster.local.session import RunRequest, run_file

    if resume and fresh:
        raise click.UsageError("--resume continues a run, and --fresh starts over; give one of them")
    request = RunRequest(job, resume, fresh, run_dir, ports, settings, logs, quiet, presets, to_stderr=output == "json")
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(STOP, signal.default_int_handler)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the run handles both signals itself
    try:
        code, directory = run_file(request)
        if output == "json":
            from muster.client.job_text import document_as
            from muster.client.local_backend import LocalBackend

            click.echo(document_as("json", LocalBackend(directory.parent, detach=True).document(directory.name)), nl=False)
        return code
    except RunError as error:
        raise RefusalError(str(error), error.code) from error
    except KeyboardInterrupt:
        click.echo("stopped before the job was started", err=True)
        return STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)
