"""What a replica is told and how it answers: the part of docs/architecture.md that supervisor and training share.

Everything here is plain data read from the environment. It imports no framework, so that the supervisor stays small
and starts at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from muster_trainer.objects import Place, place_of

Framework = Literal["torch", "tensorflow"]

FRAMEWORK_OF_STRATEGY: Mapping[str, Framework] = {
    "OneDevice": "tensorflow",
    "Mirrored": "tensorflow",
    "MultiWorkerMirrored": "tensorflow",
    "CentralStorage": "tensorflow",
    "ParameterServer": "tensorflow",
    "TPU": "tensorflow",
    "DDP": "torch",
    "FSDP": "torch",
    "TensorParallel": "torch",
    "Pipeline": "torch",
    "RPC": "torch",
}

DEFAULT_STATE_DIR = "/run/muster"
DEFAULT_TERMINATION_LOG = "/dev/termination-log"
SIGNAL_BASE = 128
DEFAULT_GLOBAL_SIZE = 64  # samples per step, where the job names none


class ExitCode(IntEnum):
    """The meanings a process or a supervisor ends with; 128+n (a process ended by signal n) is the one not listed."""

    COMPLETED = 0
    USER_ERROR = 10
    BAD_CONFIGURATION = 11
    PEER_LOST = 20
    PREEMPTED = 21
    PREEMPTED_NOT_SAVED = 22
    CHECKPOINT_DAMAGED = 30
    STORAGE_UNAVAILABLE = 31

    @property
    def reason(self) -> str:
        """The name in status and last words: `USER_ERROR` is `UserError`."""
        return self.name.title().replace("_", "")


def reason_of(code: int) -> str:
    """The reason for any code of the contract, 128+n included; a code outside the contract is a `UserError`."""
    if code > SIGNAL_BASE:
        return "ProcessKilled"
    return ExitCode(code).reason if code in set(ExitCode) else ExitCode.USER_ERROR.reason


class TrainerError(Exception):
    """An end with a known meaning. Its message is for the user: what is wrong, where, and what to do instead."""

    code: ExitCode = ExitCode.USER_ERROR

    @property
    def reason(self) -> str:
        return self.code.reason


class UserError(TrainerError):
    """The training code failed by itself."""

    code = ExitCode.USER_ERROR


class BadConfiguration(TrainerError):  # noqa: N818 (the contract's name for it)
    """The job cannot run as it is written; trying again changes nothing."""

    code = ExitCode.BAD_CONFIGURATION


class PeerLost(TrainerError):  # noqa: N818
    """Another member of the world went away, or a newer attempt took over."""

    code = ExitCode.PEER_LOST


class CheckpointDamaged(TrainerError):  # noqa: N818
    """A checkpoint that the user named does not verify."""

    code = ExitCode.CHECKPOINT_DAMAGED


class StorageUnavailable(TrainerError):  # noqa: N818
    """The checkpoint storage is full or cannot be reached."""

    code = ExitCode.STORAGE_UNAVAILABLE


def error_of(code: int, message: str) -> TrainerError:
    """The error with this code, as another rank tells of it."""
    return next((kind for kind in TrainerError.__subclasses__() if kind.code == code), UserError)(message)


RESCUE_SECONDS = 5.0
"""How long a process that has lost its peers may take to save what it alone holds."""


@dataclass(frozen=True)
class BatchSpec:
    """How many samples make a step: `global_size` over all devices of the world, in `accumulation_steps` portions. In a world that has
    become smaller a portion has `most_at_once` samples at most, as in the whole one; None: the world stays as it is."""

    global_size: int
    accumulation_steps: int = 1
    learning_rate_scaling: str = "None"
    most_at_once: int | None = None


@dataclass(frozen=True)
class CheckpointSpec:
    """Where and when to save. `every_steps` and `every_seconds` are None where that trigger is off; `resume` is
    `Auto`, `Never` or the path of a checkpoint; `keep` is how many commits stay; `asynchronous`: training goes on while one is written."""

    directory: Place
    resume: str = "Auto"
    every_steps: int | None = None
    every_seconds: float | None = None
    keep: int = 3
    asynchronous: bool = True


@dataclass(frozen=True)
class InputSpec:
    """How samples are read (docs/input.md). `workers` read at the same time, `prefetch` batches ahead each; 0 workers: each
    batch when it is needed. None: as fits the data and the framework. `shard` is `Data` or `File`, `cache` a folder."""

    workers: int | None = None
    prefetch: int | None = None
    shard: str = "Data"
    cache: Path | None = None


EntryPoint = Literal["task", "module", "script", "command"]
ENTRY_POINTS: tuple[EntryPoint, ...] = ("task", "module", "script", "command")


@dataclass(frozen=True)
class TrainerSpec:
    """What to train: the content of `MUSTER_TRAINER`. Exactly one of the four entry points is not None."""

    task: str | None
    module: str | None
    script: str | None
    command: tuple[str, ...] | None
    config: Mapping[str, Any]
    batch: BatchSpec
    input: InputSpec
    options: Mapping[str, Any]
    communication: str
    checkpoint: CheckpointSpec | None
    grace_seconds: float

    @property
    def entry_point(self) -> EntryPoint:
        return next(name for name in ENTRY_POINTS if getattr(self, name) is not None)

    @classmethod
    def from_json(cls, text: str) -> TrainerSpec:
        """Parse `MUSTER_TRAINER`. Raises BadConfiguration that names the field."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise BadConfiguration(f"MUSTER_TRAINER is not JSON: {error}") from None
        fields = _Fields(document, "MUSTER_TRAINER")
        named = [name for name in ENTRY_POINTS if fields.values.get(name) is not None]
        if len(named) != 1:
            found = " and ".join(named) or "none"
            raise BadConfiguration(f"MUSTER_TRAINER: exactly one of {', '.join(ENTRY_POINTS)} is needed, found {found}")
        return cls(
            task=fields.optional_text("task"),
            module=fields.optional_text("module"),
            script=fields.optional_text("script"),
            command=fields.optional_texts("command"),
            config=fields.mapping("config"),
            batch=_batch(fields.child("batch")),
            input=_input(fields.child("input")) if fields.values.get("input") is not None else InputSpec(),
            options=fields.mapping("options"),
            communication=fields.text("communication", "Auto"),
            checkpoint=_checkpoint(fields.child("checkpoint")) if fields.values.get("checkpoint") is not None else None,
            grace_seconds=fields.number("graceSeconds", 30.0),
        )


def _batch(fields: _Fields) -> BatchSpec:
    return BatchSpec(
        global_size=fields.count("globalSize", DEFAULT_GLOBAL_SIZE),
        accumulation_steps=fields.count("accumulationSteps", 1),
        learning_rate_scaling=fields.text("learningRateScaling", "None"),
        most_at_once=None if fields.values.get("mostAtOnce") is None else fields.count("mostAtOnce"),
    )


def _input(fields: _Fields) -> InputSpec:
    workers, prefetch = fields.values.get("workers"), fields.values.get("prefetch")
    cache = fields.optional_text("cache")
    return InputSpec(
        workers=None if workers is None else fields.count("workers", least=0),
        prefetch=None if prefetch is None else fields.count("prefetch"),
        shard=fields.text("shard", "Data"),
        cache=None if cache is None else Path(cache),
    )


def _checkpoint(fields: _Fields) -> CheckpointSpec:
    every_steps = fields.values.get("everySteps")
    every_seconds = fields.values.get("everySeconds")
    return CheckpointSpec(
        directory=place_of(fields.text("directory")),
        resume=fields.text("resume", "Auto"),
        every_steps=None if every_steps is None else fields.count("everySteps"),
        every_seconds=None if every_seconds is None else fields.number("everySeconds"),
        keep=fields.count("keep", 3),
        asynchronous=fields.flag("async", True),
    )


@dataclass(frozen=True)
class ReplicaEnv:
    """Who this replica is and where it may write: the `MUSTER_*` variables other than `MUSTER_TRAINER`.

    `job` is `namespace/name`; `created` is in UTC and together with `attempt` makes the fence. `coordinator` and
    `token_file` are None where there is no coordination channel, `tensorboard_dir` where no summaries are wanted.
    """

    job: str
    job_uid: str
    created: datetime
    strategy: str
    role: str
    index: int
    attempt: int
    processes: int
    pod_name: str
    pod_uid: str
    state_dir: Path
    termination_log: Path
    coordinator: str | None
    coordinator_authority: str | None
    token_file: Path | None
    tensorboard_dir: Path | None

    @property
    def framework(self) -> Framework:
        return FRAMEWORK_OF_STRATEGY[self.strategy]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ReplicaEnv:
        """Parse the variables. Raises BadConfiguration that names the variable."""
        strategy = _required(environment, "MUSTER_STRATEGY")
        if strategy not in FRAMEWORK_OF_STRATEGY:
            known = ", ".join(FRAMEWORK_OF_STRATEGY)
            raise BadConfiguration(f"MUSTER_STRATEGY: {strategy!r} is no strategy; write one of {known}")
        return cls(
            job=_required(environment, "MUSTER_JOB"),
            job_uid=_required(environment, "MUSTER_JOB_UID"),
            created=_created(_required(environment, "MUSTER_JOB_CREATED")),
            strategy=strategy,
            role=_required(environment, "MUSTER_ROLE"),
            index=_whole(environment, "MUSTER_INDEX", least=0),
            attempt=_whole(environment, "MUSTER_ATTEMPT", least=0),
            processes=_whole(environment, "MUSTER_PROCESSES", least=1),
            pod_name=_required(environment, "MUSTER_POD_NAME"),
            pod_uid=_required(environment, "MUSTER_POD_UID"),
            state_dir=Path(environment.get("MUSTER_STATE_DIR") or DEFAULT_STATE_DIR),
            termination_log=termination_log_of(environment),
            coordinator=environment.get("MUSTER_COORDINATOR") or None,
            coordinator_authority=environment.get("MUSTER_COORDINATOR_AUTHORITY") or None,
            token_file=_optional_path(environment, "MUSTER_TOKEN_FILE"),
            tensorboard_dir=_optional_path(environment, "MUSTER_TENSORBOARD_DIR"),
        )


def termination_log_of(environment: Mapping[str, str]) -> Path:
    """Where the last words go, known even when nothing else of the environment is right."""
    return Path(environment.get("MUSTER_TERMINATION_LOG") or DEFAULT_TERMINATION_LOG)


def trainer_spec_of(environment: Mapping[str, str]) -> TrainerSpec:
    """The `MUSTER_TRAINER` of an environment. Raises BadConfiguration where it is absent or wrong."""
    return TrainerSpec.from_json(_required(environment, "MUSTER_TRAINER"))


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise BadConfiguration(f"{name} is not set; the renderer sets it (see docs/architecture.md)")
    return value


def _optional_path(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name)
    return Path(value) if value else None


def _whole(environment: Mapping[str, str], name: str, *, least: int) -> int:
    value = _required(environment, name)
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
        raise BadConfiguration(f"{name}: {value!r} is not a whole number of at least {least}")
    return int(value)


def _created(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise BadConfiguration(f"MUSTER_JOB_CREATED: {text!r} is not RFC 3339 in UTC with seconds, such as 2026-11-21T11:16:14Z") from None


class _Fields:
    """One JSON object, read field by field; every error says the field's path. A default of None means required."""

    def __init__(self, values: object, path: str) -> None:
        if not isinstance(values, dict):
            raise BadConfiguration(f"{path}: an object is needed, found {_shown(values)}")
        self.values: dict[str, Any] = values
        self.path = path

    def child(self, name: str) -> _Fields:
        return _Fields(self.values.get(name), f"{self.path}.{name}")

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.values.get(name)
        return {} if value is None else _Fields(value, f"{self.path}.{name}").values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "a text that is not empty", value)
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def optional_texts(self, name: str) -> tuple[str, ...] | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts that is not empty", value)
        return tuple(value)

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise self._wrong(name, "a number that is not negative", value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        return default if value is None else value

    def _wrong(self, name: str, needed: str, found: object) -> BadConfiguration:
        return BadConfiguration(f"{self.path}.{name}: {needed} is needed, found {_shown(found)}")


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]
