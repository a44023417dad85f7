"""The images of an installation, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from muster.strategies.registry import STRATEGIES


@dataclass(frozen=True)
class Images:
    """`trainers`: one image per framework, by its name. `supervisor`: the image that brings the supervisor into images of users (the
    operator's image has it), with its pull policy. None leaves the policy to Kubernetes."""

    trainers: Mapping[str, str]
    supervisor: str
    supervisor_pull_policy: str | None = None


def default_images() -> Images:
    """The images of this version of Muster."""
    release = version("muster-training")
    trainers = {name: f"muster-trainer-{name.lower()}:{release}" for name in {strategy.framework.name for strategy in STRATEGIES.values()}}
    return Images(trainers, supervisor=f"muster-operator:{release}")
