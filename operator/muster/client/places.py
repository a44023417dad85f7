"""Where else a job has something to look at: its trackers and its checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from muster.api.job import TrainingJob
from muster.api.unchecked import mapping, mappings
from muster_contract.environment import WANDB_RUN_ID
from muster_contract.text import printable

LONGEST = 2048
_WANDB = "https://wandb.ai"


def places_of(job: TrainingJob, *, tensorboard: str = "") -> list[tuple[str, str]]:
    """The names and addresses. `tensorboard` is the folder of its files, if it exists here. Only what the job itself names is listed, so a
    variable that comes from a Secret is not."""
    variables = dict(_variables(job))
    storage = job.spec.checkpoint.storage
    found = [("checkpoints", storage.uri)] if storage is not None and storage.uri else []
    if (mlflow := variables.get("MLFLOW_TRACKING_URI")) is not None:
        found.append(("MLflow", mlflow))
    if (project := variables.get("WANDB_PROJECT")) is not None:
        base = variables.get("WANDB_BASE_URL", _WANDB).rstrip("/")
        run = variables.get(WANDB_RUN_ID) or job.metadata.uid
        entity = variables.get("WANDB_ENTITY")
        path = "/".join(quote(each, safe="") for each in (entity or "", project, "runs", run) if each)
        found.append(("W&B", f"{base}/{path}" if entity else f"project {project}, run {run}"))
    if tensorboard:
        found.append(("TensorBoard", f"tensorboard --logdir {tensorboard}"))
    return [(name, printable(address, most=LONGEST)) for name, address in found]


def _variables(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """The variables that the job sets, by name. Those of a role's template come after those of all roles."""
    for variable in job.spec.trainer.env or ():
        if variable.value:
            yield variable.name, variable.value
    for role in job.spec.roles.values():
        for _, container in mappings(mapping(role.template.get("spec")).get("containers")):
            for _, each in mappings(container.get("env")):
                name, value = each.get("name"), each.get("value")
                if isinstance(name, str) and isinstance(value, str) and value:
                    yield name, value
