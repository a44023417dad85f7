"""The CustomResourceDefinitions, made from the API types. `crd.py` writes them to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from muster.admission import cel, change_policy
from muster.admission.preset import PRESET_NAME
from muster.admission.structural import Schema, part_of, structural_schema
from muster.admission.template import template_schema
from muster.api.constants import (
    API_VERSION,
    DEPRECATED_API_VERSION,
    DEPRECATED_VERSION,
    GROUP,
    KIND,
    PLURAL,
    PRESET_KIND,
    PRESET_PLURAL,
    PRESET_SHORT_NAME,
    SHORT_NAME,
    VERSION,
)
from muster.api.preset import Defaults
from muster.api.spec import WORKER, TrainingJobSpec
from muster.api.status import TrainingJobStatus, described

DEFAULT_FILE = Path("crds") / f"{GROUP}_{PLURAL}.yaml"
PRESET_FILE = Path("crds") / f"{GROUP}_{PRESET_PLURAL}.yaml"
HEADER = "# Generated from operator/muster/api by `python -m muster.admission.crd`; do not edit.\n"

COLUMNS = (
    ("STRATEGY", "string", ".spec.strategy", "Strategy of the job.", 0),
    ("PHASE", "string", ".status.phase", "Phase of the job.", 0),
    ("QUEUED", "string", ".status.queue.summary", "Position and name of the queue that the job waits in.", 0),
    ("WORKERS", "string", ".status.workers", "Running and desired workers.", 0),
    ("STEP", "integer", ".status.progress.step", "Number of steps done.", 0),
    ("%", "integer", ".status.progress.percent", "Percentage of the steps that are done.", 0),
    ("LOSS", "string", ".status.progress.loss", "Loss of the last step.", 0),
    ("RESTARTS", "integer", ".status.restarts.total", "Number of restarts since the job was created.", 0),
    ("AGE", "date", ".metadata.creationTimestamp", "Time since the job was created.", 0),
    ("ETA", "integer", ".status.progress.etaSeconds", "Estimated seconds to the end.", 1),
    ("GOODPUT", "number", ".status.goodput.ratio", "Productive share of the wall-clock time.", 1),
    ("USED", "string", ".status.usage.summary", "Device-hours and cost of the job.", 1),
    ("CHECKPOINT", "integer", ".status.checkpoint.step", "Step of the newest commit.", 1),
    ("MESSAGE", "string", ".status.message", "What the job does or waits for.", 1),
)

_PRESET_COLUMNS = (
    ("CLAIM", "string", ".spec.checkpoint.storage.persistentVolumeClaim.claimName", "Claim for checkpoints.", 0),
    ("STORAGE", "string", ".spec.checkpoint.storage.uri", "URI for checkpoints.", 0),
    ("WORKER", "string", ".spec.roles.worker.resources.limits", "Resources of a worker.", 0),
    ("AGE", "date", ".metadata.creationTimestamp", "Time since the preset was created.", 0),
)


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition as plain data."""
    subresources = {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.roles.worker.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    version = {"subresources": subresources, "additionalPrinterColumns": [_column(*column) for column in COLUMNS]}
    names = {"plural": PLURAL, "singular": KIND.lower(), "shortNames": [SHORT_NAME], "categories": ["training"]}
    return _definition(KIND, "Namespaced", names, version, schema())


def preset_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of presets. They are cluster-scoped: one name means the same in all namespaces."""
    version = {"additionalPrinterColumns": [_column(*column) for column in _PRESET_COLUMNS]}
    names = {"plural": PRESET_PLURAL, "singular": PRESET_KIND.lower(), "shortNames": [PRESET_SHORT_NAME]}
    return _definition(PRESET_KIND, "Cluster", names, version, preset_schema())


def _definition(kind: str, scope: str, names: dict[str, Any], version: dict[str, Any], whole: Schema) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind. Both versions have the same schema, so that no webhook has to convert objects."""
    warning = f"{DEPRECATED_API_VERSION} {kind} is deprecated: write {API_VERSION}. No field differs"
    deprecated = {"deprecated": True, "deprecationWarning": warning}
    version = {**version, "schema": {"openAPIV3Schema": whole}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"kind": kind, "listKind": f"{kind}List", **names},
            "conversion": {"strategy": "None"},
            "versions": [
                {"name": VERSION, "served": True, "storage": True, **version},
                {"name": DEPRECATED_VERSION, "served": True, "storage": False, **deprecated, **version},
            ],
        },
    }


def _whole(kind: str, description: str, **parts: Schema) -> Schema:
    """The structural schema of an object of this kind, with these parts."""
    identity = {
        "apiVersion": {"description": f"{GROUP}/{VERSION}", "type": "string"},
        "kind": {"description": kind, "type": "string"},
        "metadata": {"type": "object", "properties": {"name": {"description": "Name of the object.", "type": "string"}}},
    }
    return {"description": description, "type": "object", "required": ["metadata", "spec"], "properties": {**identity, **parts}}


def preset_schema() -> Schema:
    """The structural schema of a TrainingPreset."""
    spec = structural_schema(Defaults, defaults=False)
    role = spec["properties"]["roles"]["additionalProperties"]["properties"]
    for properties in (spec["properties"], role):
        properties["template"] = template_schema(properties["template"]["description"])
    name = {"rule": f"self.metadata.name.matches('^{PRESET_NAME}$') && self.metadata.name.size() <= 63"}
    spec["description"] = "What the jobs get where they set nothing themselves."
    whole = _whole(PRESET_KIND, "Defaults for training jobs that name it in spec.preset, in all namespaces.", spec=spec)
    return {
        **whole,
        "x-kubernetes-validations": [
            {**name, "message": "metadata.name: must have at most 63 characters, so that a job can name it", "fieldPath": ".metadata.name"}
        ],
    }


def schema() -> Schema:
    """The structural schema of a TrainingJob with its rules."""
    whole = _whole(KIND, "A distributed training job.", spec=_spec(), status=_status())
    for path, validations in cel.validations().items():
        part_of(whole, path)["x-kubernetes-validations"] = validations
    return whole


def text() -> str:
    """The file of the TrainingJob, with its header."""
    return _text(definition())


def preset_text() -> str:
    """The file of the TrainingPreset, with its header."""
    return _text(preset_definition())


def change_policy_text() -> str:
    """The chart's file of the policy for changes, with its header."""
    return _text(change_policy.change_policy())


def _text(definition: dict[str, Any]) -> str:
    return HEADER + yaml.dump(definition, sort_keys=False, width=140, allow_unicode=True, Dumper=_PlainDumper)


class _PlainDumper(yaml.SafeDumper):
    """Writes every part in full, because anchors are hard to read in a schema. Only the schema that both versions share is written once."""

    def ignore_aliases(self, data: Any) -> bool:
        return not (isinstance(data, dict) and "openAPIV3Schema" in data)

    def generate_anchor(self, node: yaml.Node) -> str:
        return "schema"


def _column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _spec() -> Schema:
    spec = structural_schema(TrainingJobSpec, defaults=True)
    properties = spec["properties"]
    role = properties["roles"]["additionalProperties"]["properties"]
    role["template"] = template_schema(role["template"]["description"])
    properties["roles"]["default"] = {WORKER: {}}
    properties["trainer"]["properties"]["env"].update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})
    return spec


def _status() -> Schema:
    with described():
        status = structural_schema(TrainingJobStatus, defaults=False)
    status["properties"]["conditions"].update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
    status["properties"]["roles"].update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})
    return status
