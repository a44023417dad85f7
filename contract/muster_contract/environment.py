"""The environment variables of a replica. The renderer and the local runner write them; supervisor and trainer read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from muster_contract.wire import TIME_FORMAT, WireError, document, fields_of, wire_field

PREFIX = "MUSTER_"
"""The prefix of all variables of Muster. A user may not set one."""

RANK = "MUSTER_RANK"
LOCAL_RANK = "MUSTER_LOCAL_RANK"
EVENTS_FD = "MUSTER_EVENTS_FD"
MEMORY_FD = "MUSTER_MEMORY_FD"
MEMORY_REQUEST = "MUSTER_MEMORY_REQUEST"
ORDERS_FD = "MUSTER_ORDERS_FD"
EVENTS_ADDRESS = "MUSTER_EVENTS_ADDRESS"
EVENTS_TOKEN = "MUSTER_EVENTS_TOKEN"
LARGE_VARIABLES = "MUSTER_LARGE_VARIABLES"
DEBUG = "MUSTER_DEBUG"
RUN = "MUSTER_RUN"

PROCESS_VARIABLES: Mapping[str, str] = {
    RANK: "Global rank of a training process. The supervisor sets it for each process. If the role has no ranks, it is the index of the "
    "replica.",
    LOCAL_RANK: "Rank of a training process in its replica. The supervisor sets it for each process.",
    EVENTS_FD: "File descriptor to which a training process writes its events. The supervisor sets it for each process.",
    MEMORY_FD: "File descriptor of the memory in which a training process keeps snapshots. The supervisor holds it between "
    "attempts. Set for a job with snapshots in memory.",
    MEMORY_REQUEST: "Memory that the trainer container requests, in bytes, from the downward API. Set for a job with snapshots in memory "
    "whose size it does not name.",
    ORDERS_FD: "File descriptor from which a training process reads the world of the next attempt, if it survives the loss of a peer. The "
    "supervisor sets it for each process of the bundled trainer.",
    EVENTS_ADDRESS: "Host and port on the loopback interface where the supervisor takes events of programs that do not inherit the file "
    "descriptor. Set for `script` and `command`.",
    EVENTS_TOKEN: "The first line that a program sends to `MUSTER_EVENTS_ADDRESS`.",
    LARGE_VARIABLES: "Variables of more than 32 KiB, such as the `TF_CONFIG` of a large job: JSON, compressed and in base64. The "
    "supervisor and the training process make plain variables of them.",
    DEBUG: "`1`: the bundled trainer logs more, and a traceback with each error, not only with those of the user's code. Only for "
    "`muster run`, which takes it from your environment, and sets it with `--debug`.",
    RUN: "Mark of every process of a local run, by which `muster run` finds and ends them.",
}
"""Variables besides those of a ReplicaEnvironment, with their meaning."""

STATUS_URL = "KUBEFLOW_TRAINER_SERVER_URL"
STATUS_CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
STATUS_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"

STATUS_VARIABLES: Mapping[str, str] = {
    STATUS_URL: "Address on the loopback interface to which programs may post their status, as they do to Kubeflow Trainer. The supervisor "
    "sets it for `script` and `command`.",
    STATUS_TOKEN: "File with the bearer token for that address.",
    STATUS_CA_CERT: "Not set, because the address is plain HTTP.",
}
"""Variables of another protocol. If a job sets one of them, the supervisor sets none."""

WANDB_RUN_ID = "WANDB_RUN_ID"
WANDB_RESUME = "WANDB_RESUME"
WANDB_NAME = "WANDB_NAME"
WANDB_RUN_GROUP = "WANDB_RUN_GROUP"
MLFLOW_RUN_CONTEXT = "MLFLOW_RUN_CONTEXT"
MLFLOW_RUN_ID = "MLFLOW_RUN_ID"
TENSORBOARD_LOGGING_DIR = "TENSORBOARD_LOGGING_DIR"

TRACKER_VARIABLES: Mapping[str, str] = {
    WANDB_RUN_ID: "Id of the job's W&B run: the uid of the job, and the rank for ranks other than 0.",
    WANDB_RESUME: "`allow`. It is set together with `WANDB_RUN_ID`, if neither is set.",
    WANDB_NAME: "Name of the W&B run: the name of the job, and the rank for ranks other than 0.",
    WANDB_RUN_GROUP: "Name of the job.",
    MLFLOW_RUN_CONTEXT: "Tags of the MLflow runs of this process: the uid of the job, and the rank.",
    MLFLOW_RUN_ID: "The MLflow run of an earlier attempt of the job, if the tracking server has one. For rank 0.",
    TENSORBOARD_LOGGING_DIR: "`MUSTER_TENSORBOARD_DIR`, if that is set.",
}
"""Variables of experiment trackers. The supervisor sets them for `script` and `command`, unless they are set."""

REFERENCE = re.compile(r"\$(?:\$|\(([^)]{0,1024})\))")
"""A reference `$(NAME)` to a variable, or an escaped dollar sign. Without a limit of the name, a text of many `$(` would take minutes."""
RESCUE_SECONDS = 5.0
"""Seconds that a process that has lost its peers may take to save its state."""


@document
class ReplicaEnvironment:
    """The identity of the replica and its job, what it trains, and where it may write. The variable of a field is `MUSTER_` and its
    name."""

    job: str = wire_field(min_length=1, doc="`namespace/name` of the job.")
    job_uid: str = wire_field(min_length=1, doc="Uid of the job.")
    job_created: datetime = wire_field(doc="Creation time of the job, RFC 3339 in UTC with seconds.")
    strategy: str = wire_field(min_length=1, doc="Name of the strategy.")
    role: str = wire_field(min_length=1, doc="Role of this replica.")
    index: int = wire_field(minimum=0, doc="Index of this replica in its role.")
    attempt: int = wire_field(minimum=0, doc="The attempt that this replica takes part in.")
    processes: int = wire_field(minimum=1, doc="Processes of this replica.")
    trainer: str = wire_field(min_length=1, max_length=1 << 18, doc="What to train: a JSON object, the [trainer spec](trainer-spec.md).")
    pod_name: str = wire_field(min_length=1, doc="Name of the pod, from the downward API.")
    pod_uid: str = wire_field(min_length=1, doc="Uid of the pod, from the downward API.")
    node_name: str | None = wire_field(default=None, doc="Name of the node, from the downward API.")
    first_rank: int | None = wire_field(
        default=None, minimum=0, doc="Global rank of this replica's first process. Absent: the role has no ranks."
    )
    world_size: int | None = wire_field(default=None, minimum=1, doc="Processes of the world.")
    world_address: str | None = wire_field(default=None, doc="Host and port where the first replica of the world listens.")
    standby: bool = wire_field(default=False, doc="`1`: this replica waits until a world takes it in.")
    state_dir: Path = wire_field(default=Path("/run/muster"), doc="Folder that the replica may write.")
    termination_log: Path = wire_field(default=Path("/dev/termination-log"), doc="File for the termination message.")
    coordinator: str | None = wire_field(default=None, doc="Base URL of the coordination channel. Absent: there is no channel.")
    coordinator_authority: str | None = wire_field(
        default=None, doc="PEM certificates that verify the coordinator. Absent: the channel is plain HTTP on one machine."
    )
    token_file: Path | None = wire_field(default=None, doc="File with the bearer token for the channel.")
    objects: Path | None = wire_field(default=None, doc="Folder with a folder for each ConfigMap and Secret of the strategy.")
    checkpoint_dir: str | None = wire_field(default=None, doc="The job's folder or URI in its checkpoint storage. Absent: it has none.")
    tensorboard_dir: Path | None = wire_field(
        default=None, doc="Folder for TensorBoard summaries. The evaluator writes to `evaluator` below it."
    )
    code: Path | None = wire_field(
        default=None,
        doc="Folder with the files of `trainer.code`. The supervisor copies them into its working directory, which it puts first on "
        "`PYTHONPATH`, and removes the variable.",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ReplicaEnvironment:
        """Parses the variables. An empty variable counts as absent. Raises BadConfiguration that names the variable."""
        values: dict[str, Any] = {}
        for field in fields_of(cls):
            name = NAMES[field.name]
            if text := environment.get(name):
                try:
                    values[field.name] = field.decode(_json_value(text, field.hint))
                except WireError as error:
                    raise BadConfiguration(f"{name}: {error.problem}") from None
            elif field.required:
                raise BadConfiguration(f"{name} is not set; the operator and `muster run` set it (docs/reference/environment.md)")
        return cls(**values)

    @property
    def trainer_spec(self) -> TrainerSpec:
        """The decoded `MUSTER_TRAINER`. Raises BadConfiguration."""
        return TrainerSpec.from_json(self.trainer)


NAMES: Mapping[str, str] = {field.name: PREFIX + field.name.upper() for field in fields_of(ReplicaEnvironment)}
"""The variable of each field of a ReplicaEnvironment."""
DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields_of(ReplicaEnvironment) if not field.required}


def variables(**values: object) -> dict[str, str]:
    """The variables for some fields of a ReplicaEnvironment. Omits None, False and empty text."""
    return {NAMES[name]: _text(value) for name, value in values.items() if value is not None and value is not False and value != ""}


def path_in(environment: Mapping[str, str], field: str) -> Path:
    """One path, before the rest of the environment is parsed: its variable, or its default."""
    return Path(environment.get(NAMES[field]) or DEFAULTS[field])


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """The text with `$(NAME)` replaced by the variable's value, and `$$` by `$`. References to unknown names stay as they are.

    Source: `third_party/forked/golang/expansion/expand.go` of Kubernetes.
    """
    return REFERENCE.sub(lambda match: "$" if match[0] == "$$" else environ.get(match[1], match[0]), text)


def _text(value: object) -> str:
    match value:
        case True:
            return "1"
        case datetime():
            return value.astimezone(UTC).strftime(TIME_FORMAT)
    return str(value)


def _json_value(text: str, hint: Any) -> Any:
    """The variable's text as JSON, for a field of this type."""
    if hint is bool:
        return text == "1"
    if int in (hint, *get_args(hint)) and re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    return text
