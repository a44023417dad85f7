"""Defaults for jobs, of the installation or of a preset, and how they become part of a job. A job's own fields always come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.api.capacity import Classes
from muster.api.preset import Defaults
from muster.api.problems import Problem
from muster.api.spec import Resources, Role, RoleName, Storage, TrainingJobSpec
from muster.render.images import Images
from muster.render.merge import strategic_merge
from muster.strategies.registry import strategy_of

Template = Mapping[str, Any]


@dataclass(frozen=True)
class JobDefaults:
    """`template` is a pod template for every replica. `templates` and `resources` are for single roles. The fields of a job override all of
    them. `storage` is for checkpoints. `images` are trainer images by framework. `node_cache` is a folder of the nodes in which the pods of
    a namespace share inputs, and `classes` are the capacity classes of nodes; only an installation has them. `preset` is the name of the
    preset, or empty for the defaults of the installation.
    """

    template: Template = field(default_factory=dict)
    storage: Storage | None = None
    templates: Mapping[RoleName, Template] = field(default_factory=dict)
    resources: Mapping[RoleName, Resources] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    node_cache: str | None = None
    classes: Classes | None = None
    preset: str = ""

    @classmethod
    def of(cls, defaults: Defaults, *, preset: str = "") -> JobDefaults:
        return cls(
            template=defaults.template,
            storage=defaults.checkpoint.storage,
            templates={name: role.template for name, role in defaults.roles.items() if role.template},
            resources={name: role.resources for name, role in defaults.roles.items() if role.resources != Resources()},
            images=defaults.images,
            preset=preset,
        )

    def applied(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """The spec with the storage and the resources that it lacks. Templates are merged when pods are rendered. The strategy of the spec
        must be installed."""
        if self.storage is not None and spec.checkpoint.storage is None:
            spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"storage": self.storage})})
        if not self.resources:
            return spec
        defaults = self.resources
        roles = {name: _with_resources(role, defaults[name]) for name, role in _roles_of(spec).items() if name in defaults}
        return spec.model_copy(update={"roles": {**spec.roles, **roles}})

    def removed(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """The spec without the storage, if it equals the default."""
        if self.storage is None or spec.checkpoint.storage != self.storage:
            return spec
        return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"storage": None})})

    def templates_of(self, role: RoleName) -> Iterator[tuple[str, Template]]:
        """The templates for pods of a role, each with its path, in the order in which they are merged."""
        yield "template", self.template
        yield f"roles.{role}.template", self.templates.get(role, {})

    def problem(self, path: str, message: str) -> Problem:
        """A problem of the field at `path` of these defaults."""
        if self.preset:
            return Problem("spec.preset", f"preset {self.preset}: {path}: {message}")
        return Problem(f"jobDefaults.{path}", message)


def images_with(images: Images, defaults: Sequence[JobDefaults]) -> Images:
    """The images for a job with these defaults. Later ones come first."""
    own = {framework: image for each in defaults for framework, image in each.images.items()}
    return replace(images, trainers={**images.trainers, **own}) if own else images


def written_out(spec: TrainingJobSpec, defaults: JobDefaults) -> TrainingJobSpec:
    """The spec with all fields of a preset written into it, and without its name. Images are omitted, because they are only for
    clusters."""
    spec = defaults.applied(spec)
    below = {name: [template for _, template in defaults.templates_of(name)] for name in strategy_of(spec.strategy).roles}
    roles = {name: _with_templates(role, below[name]) for name, role in _roles_of(spec).items()}
    return spec.model_copy(update={"roles": {**spec.roles, **roles}, "preset": None})


def _roles_of(spec: TrainingJobSpec) -> dict[RoleName, Role]:
    """The roles that the job has, in its spec or because its strategy needs them."""
    strategy = strategy_of(spec.strategy)
    roles = ((name, strategy.role(spec, name)) for name in strategy.roles)
    return {name: role for name, role in roles if role is not None}


def _with_resources(role: Role, defaults: Resources) -> Role:
    """The role with default resources, for each resource that it names neither in limits nor in requests."""
    own = role.resources
    named = {*own.limits, *own.requests}
    limits = {name: quantity for name, quantity in defaults.limits.items() if name not in named}
    requests = {name: quantity for name, quantity in defaults.requests.items() if name not in named}
    merged = Resources(limits={**limits, **own.limits}, requests={**requests, **own.requests})
    return role.model_copy(update={"resources": merged})


def _with_templates(role: Role, below: Sequence[Template]) -> Role:
    merged: dict[str, Any] = {}
    for template in (*below, role.template):
        merged = strategic_merge(merged, template)
    return role.model_copy(update={"template": merged})
