"""`muster validate`: whether a job file would be accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli import job_file
from muster.cli.on_jobs import output_option
from muster_contract.batch import learning_rate_factor, split

BAD_CONFIGURATION = 11

if TYPE_CHECKING:
    from muster.api.spec import TrainingJobSpec


@click.command()
@click.argument("job", metavar="JOB.YAML")
@click.option("-n", "--namespace", help="Namespace instead of the one in the file.")
@output_option("text", "json", default="text")
@job_file.presets_option
def validate(*, job: str, namespace: str | None, output: str, presets: Path | None) -> int:
    """Checks the job in JOB.YAML (- for standard input). Shows its problems, or the world that it makes."""
    from muster.admission.validate import remarks
    from muster.api.problems import InvalidJobError

    try:
        read, _ = job_file.rendered(job, namespace=namespace, presets=presets)
    except InvalidJobError as error:
        if output == "text":
            raise
        problems = [{"field": each.field, "message": each.message, "reason": each.reason} for each in error.problems]
        click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        return BAD_CONFIGURATION
    if output == "json":
        answer = {"valid": True, "job": read.key, "world": describe(read.spec), "warnings": [str(each) for each in remarks(read)]}
        click.echo(json.dumps(answer, indent=2))
        return 0
    job_file.show_remarks(read, job)
    click.echo(f"{job}: {read.key} is valid: {describe(read.spec)}.")
    return 0


def describe(spec: TrainingJobSpec) -> str:
    """The world that a spec makes, and how it shares a batch."""
    from muster.api.chosen_classes import classes_of
    from muster.strategies.registry import strategy_of

    strategy = strategy_of(spec.strategy)
    plan = strategy.plan(spec)
    counts = [f"{len(plan.of(role))} x {role}" for role in strategy.roles if plan.of(role)]
    parts = [f"{spec.strategy} with {', '.join(counts)}", f"a world of {plan.size} {'process' if plan.size == 1 else 'processes'}"]
    devices = strategy.data_parallel(spec)
    reads_batch = spec.trainer.task is not None or spec.trainer.module is not None  # Muster cannot know what other programs read
    if spec.batch.global_size is not None and reads_batch:
        shares = split(spec.batch.global_size, devices)
        each = f"{shares[0]}" if shares[0] == shares[-1] else f"{shares[-1]} or {shares[0]}"
        where = f"{each} on each of {devices} devices" if devices > 1 else "on one device"
        parts.append(f"{spec.batch.global_size} samples in a step, {where}")
    scale = learning_rate_factor(spec.batch.learning_rate_scaling, devices)
    if scale != 1 and reads_batch:
        parts.append(f"learning rate x {scale:g}")
    named = {role: classes_of(spec, role) for role in strategy.roles if plan.of(role)}
    parts += [f"{role} on {', then '.join(classes)} nodes" for role, classes in named.items() if classes]
    return "; ".join(parts)
