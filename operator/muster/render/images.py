"""The trainer images of an installation that names none of its own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from muster.strategies.base import Framework


def default_images() -> Mapping[Framework, str]:
    """One image per framework, of this version of Muster."""
    return {framework: f"muster-trainer-{framework.value.lower()}:{version('muster-training')}" for framework in Framework}
