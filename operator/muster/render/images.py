"""The images of an installation, and those of one that names none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from muster.strategies.base import Framework


@dataclass(frozen=True)
class Images:
    """`trainers`: one image per framework. `supervisor`: the image that brings the supervisor into images of users (the operator's own has
    it), with its pull policy; None: as Kubernetes decides."""

    trainers: Mapping[Framework, str]
    supervisor: str
    supervisor_pull_policy: str | None = None


def default_images() -> Images:
    """Those of this version of Muster."""
    release = version("muster-training")
    trainers = {framework: f"muster-trainer-{framework.value.lower()}:{release}" for framework in Framework}
    return Images(trainers, supervisor=f"muster-operator:{release}")
