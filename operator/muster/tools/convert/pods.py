"""A pod template of another tool as a role of a TrainingJob."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from muster.strategies.accelerators import ACCELERATORS, whole
from muster.tools.convert.job import Conversion, mapping, mappings, texts

TRAINER = "trainer"
_PORTS = ("pytorchjob-port", "tfjob-port", "mpijob-port", "gcs-server", "dashboard", "client", "redis", "serve")
_SET_BY_MUSTER = ("restartPolicy", "activeDeadlineSeconds", "hostname", "subdomain")


class Template:
    """The parts of a pod template: the container of the program, and the rest."""

    def __init__(self, value: Any, where: str, names: Sequence[str]) -> None:
        self.where = where
        template = mapping(value, where)
        self.metadata = mapping(template.get("metadata"), f"{where}.metadata")
        self.spec = mapping(template.get("spec"), f"{where}.spec")
        containers = mappings(self.spec.get("containers"), f"{where}.spec.containers")
        chosen = next((each for each in containers if each.get("name") in names), containers[0] if containers else {})
        self.container = chosen
        self.others = [each for each in containers if each is not chosen]

    @property
    def command(self) -> list[str]:
        """The command of the container, without its arguments."""
        return texts(self.container.get("command"), f"{self.where}.spec.containers[].command")

    @property
    def args(self) -> list[str]:
        return texts(self.container.get("args"), f"{self.where}.spec.containers[].args")

    @property
    def accelerators(self) -> int:
        """The number of accelerators of the container."""
        resources = mapping(self.container.get("resources"), f"{self.where}.resources")
        limits = {**mapping(resources.get("requests"), ""), **mapping(resources.get("limits"), "")}
        return sum(whole(str(limits.get(name))) or 0 for name in ACCELERATORS)


def write_role(job: Conversion, role: str, template: Template, replicas: int) -> dict[str, Any]:
    """Writes a role: its replicas, the resources of the container, and everything else as `template`. Returns the role."""
    fields: dict[str, Any] = {"replicas": replicas}
    if resources := template.container.get("resources"):
        fields["resources"] = resources
    if rest := _rest(job, template):
        fields["template"] = rest
    job.spec.setdefault("roles", {})[role] = fields
    return fields


def add_variables(fields: dict[str, Any], variables: dict[str, str]) -> None:
    """Adds environment variables to a role's container."""
    if variables:
        spec = fields.setdefault("template", {}).setdefault("spec", {})
        containers = spec.setdefault("containers", [])
        if not any(each.get("name") == TRAINER for each in containers):
            containers.insert(0, {"name": TRAINER})
        container = next(each for each in containers if each.get("name") == TRAINER)
        container.setdefault("env", []).extend({"name": name, "value": value} for name, value in variables.items())


def _rest(job: Conversion, template: Template) -> dict[str, Any]:
    left_out = ("name", "image", "command", "args", "resources", "ports")
    container = {key: value for key, value in template.container.items() if key not in left_out}
    ports = [each for each in mappings(template.container.get("ports"), "ports") if each.get("name") not in _PORTS]
    if ports:
        container["ports"] = ports
    containers = [{"name": TRAINER, **container}] if container else []
    containers += template.others
    spec = {key: value for key, value in template.spec.items() if key not in ("containers", *_SET_BY_MUSTER)}
    if "restartPolicy" in template.spec:
        job.note("restartPolicy", "is left out: the class of a failure decides, see spec.recovery")
    if containers:
        spec = {**spec, "containers": containers}
    metadata = {key: value for key, value in template.metadata.items() if key in ("labels", "annotations") and value}
    return {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


def differences(first: Template, second: Template) -> list[str]:
    """The fields in which two templates differ."""
    one, two = {**first.spec, **first.container}, {**second.spec, **second.container}
    ignored = ("containers", "name", "ports")
    return sorted(key for key in {*one, *two} if key not in ignored and one.get(key) != two.get(key))
