"""Reads, checks and renders the job file of a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from muster.api.job import TrainingJob

presets_option = click.option(
    "--presets",
    envvar="MUSTER_PRESETS",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File with the preset that the job names, as `kubectl get trainingpresets -o yaml` prints them (- for standard input). "
    "Default: $MUSTER_PRESETS.",
)

set_option = click.option(
    "--set", "settings", metavar="FIELD=VALUE", multiple=True, help="Set a field of the job: spec.trainer.settings.epochs=3."
)


def rendered(
    path: str, *, namespace: str | None = None, attempt: int = 0, presets: Path | None = None
) -> tuple[TrainingJob, list[dict[str, Any]]]:
    """The job in the file, in `namespace` where one is given, and its manifests. `presets` is a file with the preset that it names.

    Raises InvalidJobError with the problems and the file.
    """
    from muster.acceptance.presets import with_preset
    from muster.admission.read import InvalidJobFileError, read_job
    from muster.api.problems import InvalidJobError
    from muster.render.addresses import ClusterAddresses
    from muster.render.images import default_images
    from muster.render.manifests import render

    job = read_job(path)
    try:
        if namespace is not None:
            job = _moved(job, namespace)
        addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
        job, defaults = with_preset(job, presets)
        return job, render(job, attempt=attempt, addresses=addresses, images=default_images(), defaults=defaults)
    except InvalidJobError as error:
        raise InvalidJobFileError(path, error.problems) from error


def show_remarks(job: TrainingJob, path: str) -> None:
    """Shows what may be wrong with a valid job, on standard error."""
    from muster.admission.validate import remarks
    from muster_contract.text import printable

    for remark in remarks(job):
        click.echo(printable(f"{path}: warning: {remark}"), err=True)


def _moved(job: TrainingJob, namespace: str) -> TrainingJob:
    from muster.admission.validate import problems
    from muster.api.problems import InvalidJobError

    moved = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    if errors := problems(moved):
        raise InvalidJobError(errors)
    return moved
