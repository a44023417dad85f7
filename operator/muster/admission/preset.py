"""Checks of a TrainingPreset. The API types check the types and bounds of single fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from muster.admission.bounds import bound_problems, bounded
from muster.admission.rules import IMAGE_MESSAGE, rules_for_all, violations
from muster.admission.template import template_problems
from muster.api.constants import IMAGE
from muster.api.preset import TrainingPreset
from muster.api.problems import Problem
from muster.strategies.registry import RESERVED_BUILT_IN

PRESET_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
"""A name that a job can write in `spec.preset`, if it has at most 63 characters."""

_ROLE = "preset"
_BASE = f"spec.roles.{_ROLE}.template"
_RULES = [rule for rule in rules_for_all(RESERVED_BUILT_IN) if rule.part[:4] == ("spec", "roles", "*", "template")]


def preset_problems(preset: TrainingPreset) -> list[Problem]:
    """All problems of a preset with correct types. The same rules hold for its templates as for those of a job."""
    name, spec = preset.metadata.name, preset.spec
    problems = []
    if not re.fullmatch(PRESET_NAME, name) or len(name) > 63:
        problems.append(Problem("metadata.name", f"must be at most 63 lower-case letters, digits, '-' and '.', not {name!r:.80}"))
    for framework, image in spec.images.items():
        if not re.fullmatch(IMAGE, image):
            problems.append(Problem(f"spec.images.{framework}", f"{IMAGE_MESSAGE}, not {image!r:.80}"))
    problems += _template_problems(spec.template, "spec.template")
    for role, defaults in spec.roles.items():
        problems += _template_problems(defaults.template, f"spec.roles.{role}.template")
    return problems


def _template_problems(template: Mapping[str, Any], path: str) -> Iterator[Problem]:
    role = {"template": template}
    problems = bound_problems(bounded({"roles": {_ROLE: role}})) or [
        *violations({"spec": {"roles": {_ROLE: role}}}, _RULES),
        *template_problems(_ROLE, template),
    ]
    for problem in dict.fromkeys(problems):
        yield Problem(path + problem.field.removeprefix(_BASE), problem.message)
