"""The CustomResourceDefinition, made from the API types: `python -m muster.admission.crd [--check] [FILE]`."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import yaml

from muster.admission import cel
from muster.admission.structural import Schema, structural_schema
from muster.admission.template import template_schema
from muster.api.constants import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from muster.api.spec import TrainingJobSpec
from muster.api.status import TrainingJobStatus

DEFAULT_FILE = Path("crds") / f"{GROUP}_{PLURAL}.yaml"
HEADER = "# Generated from operator/muster/api by `python -m muster.admission.crd`; do not edit.\n"

_COLUMNS = (
    ("STRATEGY", "string", ".spec.strategy", "How the training is distributed.", 0),
    ("PHASE", "string", ".status.phase", "Where the job stands.", 0),
    ("WORKERS", "string", ".status.workers", "Ready and desired replicas.", 0),
    ("STEP", "integer", ".status.progress.step", "Steps done.", 0),
    ("%", "integer", ".status.progress.percent", "Share done.", 0),
    ("LOSS", "string", ".status.progress.loss", "Loss of the last step.", 0),
    ("RESTARTS", "integer", ".status.restarts.total", "Restarts so far.", 0),
    ("AGE", "date", ".metadata.creationTimestamp", "Time since the job was created.", 0),
    ("ETA", "integer", ".status.progress.etaSeconds", "Estimated seconds to the end.", 1),
    ("GOODPUT", "number", ".status.goodput.ratio", "Productive share of the wall-clock time.", 1),
    ("CHECKPOINT", "integer", ".status.checkpoint.step", "Step of the newest commit.", 1),
    ("MESSAGE", "string", ".status.message", "What it is doing or waiting for.", 1),
)


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["training"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.roles.worker.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def schema() -> Schema:
    """The structural schema of a TrainingJob with its rules."""
    return {
        "description": "A distributed training job.",
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {"description": f"{GROUP}/{VERSION}", "type": "string"},
            "kind": {"description": KIND, "type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _status(),
        },
        "x-kubernetes-validations": cel.job_rules(),
    }


def text() -> str:
    """The file, with its header."""
    return HEADER + yaml.dump(definition(), sort_keys=False, width=140, allow_unicode=True, Dumper=_PlainDumper)


def main(arguments: list[str]) -> int:
    """Writes the file, or with --check says how it differs and returns 1."""
    check = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    file = Path(names[0]) if names else DEFAULT_FILE
    wanted = text()
    if not check:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(wanted, encoding="utf-8")
        return 0
    found = file.read_text(encoding="utf-8") if file.exists() else ""
    if found == wanted:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), fromfile=str(file), tofile="made from the types")
    )
    print(f"{file} is stale: run `python -m muster.admission.crd`", file=sys.stderr)
    return 1


class _PlainDumper(yaml.SafeDumper):
    """Every part is written out: anchors are hard to read in a schema."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _spec() -> Schema:
    spec = structural_schema(TrainingJobSpec, defaults=True)
    properties = spec["properties"]
    for name, role in properties["roles"]["properties"].items():
        role["properties"]["template"] = template_schema(role["properties"]["template"]["description"])
        if name == "worker":
            role["default"] = {}
    for path, rules in cel.spec_rules().items():
        _at(spec, path)["x-kubernetes-validations"] = rules
    return spec


def _status() -> Schema:
    status = structural_schema(TrainingJobStatus, defaults=False)
    status["properties"]["conditions"].update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
    status["properties"]["roles"].update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})
    return status


def _at(schema: Schema, path: tuple[str, ...]) -> Schema:
    for name in path:
        schema = schema["items"] if name == "*" else schema["properties"][name]
    return schema


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
