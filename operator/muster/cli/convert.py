"""`muster convert`: the job of another tool as a TrainingJob."""

from __future__ import annotations

from typing import TextIO

import click


@click.command()
@click.argument("file", metavar="FILE", type=click.File("r", encoding="utf-8"))
def convert(file: TextIO) -> None:
    """Converts the job in FILE (- for standard input) to a TrainingJob, and prints it.

    Reads PyTorchJob, TFJob, MPIJob, TrainJob, RayJob, SparkApplication, HyperPodPyTorchJob, JobSet and Job, tasks of SkyPilot, and sbatch
    scripts with srun. Comments say what changes, and what has no counterpart.
    """
    from muster.admission.read import MAX_BYTES
    from muster.api.problems import InvalidJobError, Problem
    from muster.tools.convert.documents import convert as converted
    from muster.tools.convert.documents import written
    from muster.tools.convert.job import ConvertError

    try:
        text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConvertError(f"the file is larger than {MAX_BYTES} bytes; jobs are smaller")
        click.echo(written(converted(text)), nl=False)
    except UnicodeDecodeError:
        raise InvalidJobError([Problem(file.name, "is not text in UTF-8")]) from None
    except ConvertError as error:
        raise InvalidJobError([Problem(file.name, str(error))]) from None
