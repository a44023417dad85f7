"""Overrides single fields of a job from the command line: `--set spec.trainer.settings.epochs=3`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from muster.admission.read import parse_job
from muster.admission.yaml_text import write_yaml
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError
from muster.local.errors import ConfigurationError


def overridden(job: TrainingJob, settings: Sequence[str], *, source: str = "--set") -> TrainingJob:
    """The job with each `path=value` applied. Values are YAML. Raises ConfigurationError if the result is not a valid job; each message
    begins with `source`."""
    if not settings:
        return job
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.startswith("spec."):
            raise ConfigurationError(f"{source} {setting}: write the path of a field and its value, such as spec.trainer.settings.epochs=3")
        _put(document, path.split("."), _value(f"{source} {setting}", text), f"{source} {setting}")
    try:
        return parse_job(write_yaml(document), source=source)
    except InvalidJobError as error:
        raise ConfigurationError("\n".join(f"{source}: {problem}" for problem in error.problems)) from None


def _value(setting: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigurationError(f"{setting}: {text!r} is not a YAML value; put it in quotes") from None


def _put(document: dict[str, Any], path: Sequence[str], value: Any, setting: str) -> None:
    *folders, last = path
    for name in folders:
        inner = document.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigurationError(f"{setting}: {name} is a value and has no fields; name another field below spec")
        document = inner
    document[last] = value
