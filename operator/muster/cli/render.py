"""`muster render`: every manifest of a job, with no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from muster.admission.yaml_text import write_yaml
from muster.cli import job_file
from muster_contract.trainer_spec import VARIABLE


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Format.")
@click.option("--attempt", type=click.IntRange(min=0), default=0, show_default=True, help="The attempt to render the pods of.")
@click.option("-n", "--namespace", help="Namespace instead of the one in the file.")
@job_file.presets_option
def render(*, job: str, output: str, attempt: int, namespace: str | None, presets: Path | None) -> None:
    """Prints the manifests of the job in JOB.YAML (- for standard input): the headless Service, then the pods."""
    read, manifests = job_file.rendered(job, namespace=namespace, attempt=attempt, presets=presets)
    job_file.show_remarks(read, job)
    click.echo(as_json(manifests) if output == "json" else as_yaml(manifests), nl=False)


def as_yaml(manifests: list[dict[str, Any]]) -> str:
    """One document for each manifest. The JSON of MUSTER_TRAINER is indented."""
    return write_yaml(*map(_readable, manifests), explicit_start=True, width=1_000_000)


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, dict):
        parts = {name: _readable(each) for name, each in value.items()}
        return {**parts, "value": json.dumps(json.loads(value["value"]), indent=1)} if value.get("name") == VARIABLE else parts
    return value


def as_json(manifests: list[dict[str, Any]]) -> str:
    """One List, as kubectl prints and takes several objects."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2) + "\n"
