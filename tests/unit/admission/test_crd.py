"""The CRD is structural, bounded for its rules, complete and current, and accepts the same examples as the types."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.admission import cel
from muster.admission.change_policy import change_policy
from muster.admission.changes import FIXED_WHILE_RUNNING, REPLICAS
from muster.admission.conditions import RESERVED_WORDS
from muster.admission.crd import main
from muster.admission.definitions import definition, schema, text
from muster.admission.read import parse_job, read_job
from muster.api.spec import CHIEF, EVALUATOR, PS, WORKER, TrainingJobSpec
from muster.api.status import TrainingJobStatus
from muster.strategies.registry import BUILT_IN, RESERVED_BUILT_IN
from muster_contract.config import COMMON_KEYS
from tests.support.golden_jobs import JOBS as GOLDEN_JOBS

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(
    set((ROOT / "examples").rglob("*.yaml")) - {*(ROOT / "examples").glob("compare-*.yaml"), *(ROOT / "examples/other-tools").iterdir()}
)
CRDS = sorted((ROOT / "crds").glob("*.yaml"))

ALLOWED = {
    "type", "format", "description", "default", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "items", "minItems",
    "maxItems", "properties", "required", "additionalProperties", "maxProperties", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations",
}  # fmt: skip


def nodes(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every level of a schema with its path; `*` for items of lists and values of maps."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, (*path, name))
    for kind in ("items", "additionalProperties"):
        if kind in node:
            yield from nodes(node[kind], (*path, "*"))


NODES = list(nodes(schema()))


def test_every_level_has_a_type_and_only_structural_keywords():
    for path, node in NODES:
        assert set(node) <= ALLOWED, path
        has_type = node.get("type") in ("object", "array", "string", "integer", "number", "boolean")
        assert has_type or node.get("x-kubernetes-int-or-string") or node.get("x-kubernetes-preserve-unknown-fields"), path
        assert ("properties" in node) + ("additionalProperties" in node) <= 1, path
        assert node.get("type") != "array" or "items" in node, path


def test_required_fields_are_declared_and_have_no_default():
    for path, node in NODES:
        for name in node.get("required", []):
            if path == () and name == "metadata":
                continue
            assert "default" not in node["properties"][name], (path, name)


def test_every_field_of_the_types_has_a_description_in_the_crd():
    undescribed = [
        path
        for path, node in NODES
        if path and path[-1] != "*" and "template" not in path and not node.get("description") and path != ("metadata",)
    ]
    assert undescribed == []


def test_defaults_fit_their_own_schema():
    for path, node in NODES:
        if "default" in node:
            assert list(violations(node["default"], node)) == [], path


def test_constant_defaults_of_the_types_and_the_crd_are_equal():
    job = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {}}}
    typed = TrainingJobSpec.model_validate(job).wire()
    filled = defaulted(job, schema()["properties"]["spec"])
    typed["trainer"].pop("config")
    typed["roles"]["worker"] = {key: value for key, value in typed["roles"]["worker"].items() if key != "template"} | {"resources": {}}
    assert filled == typed


def test_every_strategy_has_one_worker_by_default():
    assert {strategy.roles[WORKER].default for strategy in BUILT_IN} == {1}


def test_fields_that_rules_read_are_bounded():
    """Without bounds the API server takes the worst case of 3 MiB of input and refuses the rules as too costly."""
    looked_into = [path for path in cel.validations() if path[:1] == ("spec",)] + [("spec", "roles", "*", "resources", "limits")]
    for path, node in NODES:
        inside = any(path[: len(prefix)] == prefix for prefix in looked_into if len(prefix) > 1)
        if not inside or {"command", "args", "config"} & set(path[-2:]):  # rules only check that these exist
            continue
        bound = {"array": "maxItems", "string": "maxLength"}.get(node.get("type", "string"))
        if "enum" not in node and bound:
            assert bound in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_the_message_of_every_rule_names_a_field():
    for path, node in NODES:
        for rule in node.get("x-kubernetes-validations", []):
            assert re.match(r"[A-Za-z.*]+: ", rule["message"]), (path, rule["message"])
            assert len(rule["message"]) < 250


CALLS = ("exists", "filter", "size", "all", "matches", "startsWith")
ROLES = (WORKER, PS, CHIEF, EVALUATOR)


def test_fields_that_rules_name_exist():
    paths = {path for path, _ in NODES} | {("metadata", "name")}
    rules = [(base, rule) for base in ((), ("spec",)) for rule in cel.validations()[base]]
    for base, rule in rules:
        for name in re.findall(r"(?:self|oldSelf)\.([A-Za-z.]+)", rule["rule"].replace("__", "")):
            path = tuple("*" if part in ROLES else part for part in name.split(".") if part not in CALLS)
            assert (*base, *path) in paths, rule["rule"]
        assert tuple("*" if part in ROLES else part for part in rule.get("fieldPath", ".spec")[1:].split(".")) in paths


def test_fields_that_the_policy_for_changes_names_exist():
    paths = {path for path, _ in NODES}
    for rule in change_policy()["validations"]:
        for name in re.findall(r"bject\.(spec[.?A-Za-z]+)", rule["expression"]):
            path = tuple(part for part in re.split(r"[.?]+", name) if part not in CALLS)
            assert path in paths, rule
        for name in re.findall(r"roles\[name\]\.\?(\w+)", rule["expression"]):
            assert ("spec", "roles", "*", name) in paths, rule
        assert tuple(re.match(r"[A-Za-z.*]+", rule["message"])[0].split(".")) in paths, rule


def test_each_change_that_running_pods_would_not_follow_is_refused():
    expected = {f"spec.{field.removesuffix('.*')}" for field in FIXED_WHILE_RUNNING if field != REPLICAS}
    messages = [rule["message"] for rule in change_policy()["validations"]]
    assert {message.partition(": ")[0] for message in messages if "while the job runs" in message} == expected
    assert any(rule["message"].startswith(f"{REPLICAS}: ") for rule in cel.validations()[()])


def test_rules_escape_the_fields_whose_names_cel_reserves():
    """Kubernetes 1.30 refuses `self.options.loop`. Newer versions take it, and all take `self.options.__loop__`."""
    rules = [rule["rule"] for path in CRDS for rule in rules_in(yaml.safe_load(path.read_text()))]
    assert any("self.options.__loop__ ==" in rule for rule in rules)
    for rule in rules:
        names = re.findall(r"\.([A-Za-z_]\w*)", re.sub(r"'(\\.|[^'\\])*'", "''", rule))
        assert not RESERVED_WORDS & set(names), rule


def rules_in(node: Any) -> Iterator[dict[str, str]]:
    """All rules below a part of a definition."""
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", [])
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from rules_in(child)


def test_rules_list_the_roles_of_the_strategies():
    rules = [rule["rule"] for rule in cel.validations()[("spec",)]]
    for strategy in BUILT_IN:
        listed = ", ".join(f"'{name}'" for name in strategy.roles)
        assert any(f"'{strategy.name}'" in rule and f"self.roles.all(each, each in [{listed}])" in rule for rule in rules)


def test_reserved_environment_names_are_refused_in_every_container_of_every_role():
    rules = cel.validations()
    for kind in ("containers", "initContainers"):
        (rule,) = rules[("spec", "roles", "*", "template", "spec", kind, "*", "env", "*", "name")]
        assert all(f"'{name}'" in rule["rule"] for name in RESERVED_BUILT_IN)
        assert "self.startsWith('MUSTER_')" in rule["rule"]


def test_the_messages_of_rules_for_containers_do_not_depend_on_the_list():
    messages = {
        path[-2]: [rule["message"] for rule in node["x-kubernetes-validations"]]
        for path, node in NODES
        if path[-2:-1] in (("containers",), ("initContainers",)) and "x-kubernetes-validations" in node
    }
    assert messages["containers"] == messages["initContainers"]
    assert not any("ontainers" in message for message in messages["containers"])


def test_shared_settings_have_types_and_config_takes_any_value():
    trainer = schema()["properties"]["spec"]["properties"]["trainer"]["properties"]
    settings = trainer["settings"]["properties"]
    assert list(settings) == [key.name for key in COMMON_KEYS]
    for key in COMMON_KEYS:
        assert settings[key.name]["description"].startswith(key.doc)
        assert settings[key.name].get("enum", []) == list(key.values)
        assert settings[key.name].get("minimum") == key.least
    assert {settings[name]["type"] for name in ("epochs", "learningRate", "deterministic", "export")} == {
        "integer",
        "number",
        "boolean",
        "string",
    }
    assert trainer["config"]["x-kubernetes-preserve-unknown-fields"] is True
    assert "properties" not in trainer["config"]


def test_conditions_are_a_list_map_by_type():
    conditions = schema()["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in conditions["items"]["required"]


def test_paths_of_columns_and_of_the_scale_subresource_exist():
    version = definition()["spec"]["versions"][0]
    paths = {".".join(("", *path)) for path, _ in NODES} | {".metadata.creationTimestamp"}
    assert {column["jsonPath"] for column in version["additionalPrinterColumns"]} <= paths
    assert {path.replace(".worker.", ".*.") for path in version["subresources"]["scale"].values()} <= paths
    names = [column["name"] for column in version["additionalPrinterColumns"]]
    assert " ".join(names) == "STRATEGY PHASE QUEUED WORKERS STEP % LOSS RESTARTS AGE ETA GOODPUT USED CHECKPOINT MESSAGE"


def test_the_crd_is_small_enough_for_client_side_apply():
    written = json.dumps(yaml.safe_load(text()), separators=(",", ":"))
    assert len(written.encode()) < 240_000, "kubectl keeps it in an annotation of at most 262,144 bytes"


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.name)
def test_both_versions_have_the_same_fields_so_that_no_webhook_has_to_convert(path):
    spec = yaml.safe_load(path.read_text())["spec"]
    new, old = spec["versions"]
    assert spec["conversion"] == {"strategy": "None"}
    assert (new["name"], new["served"], new["storage"], "deprecated" in new) == ("v1beta1", True, True, False)
    assert (old["name"], old["served"], old["storage"], old["deprecated"]) == ("v1alpha1", True, False, True)
    assert "write muster.dev/v1beta1" in old["deprecationWarning"]
    fields = ("schema", "subresources", "additionalPrinterColumns")
    assert [new.get(field) for field in fields] == [old.get(field) for field in fields]


def test_the_file_in_the_repository_is_current():
    check = subprocess.run([sys.executable, "-m", "muster.admission.crd", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert check.returncode == 0, check.stderr


def test_a_stale_file_is_shown_as_a_diff(tmp_path, capsys):
    file = tmp_path / "crd.yaml"
    assert main([str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    file.write_text(file.read_text().replace("shortNames:\n    - tj", "shortNames:\n    - job"))
    assert main(["--check", str(file)]) == 1
    assert "-    - job\n+    - tj" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_are_accepted_by_the_types_and_by_the_schema(path):
    read_job(path)
    assert list(violations(yaml.safe_load(path.read_text()), schema())) == []


@pytest.mark.parametrize("name", GOLDEN_JOBS)
def test_the_jobs_of_the_golden_files_are_accepted_by_the_rules_and_by_the_schema(name):
    job = {"apiVersion": "muster.dev/v1beta1", "kind": "TrainingJob", "metadata": {"name": "job"}, "spec": GOLDEN_JOBS[name]}
    assert parse_job(yaml.safe_dump(job), source=name).spec.strategy
    assert list(violations(job, schema())) == []


def test_a_job_that_the_types_write_fits_the_schema():
    whole = {**read_job(EXAMPLES[0]).wire(), "status": TrainingJobStatus().wire()}
    assert list(violations(whole, schema())) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strategy", "D D P"),
        ("suspend", "yes"),
        ("batch", {"globalSize": 0}),
        ("checkpoint", {"keep": 1}),
        ("checkpoint", {"everySeconds": 0}),
        ("checkpoint", {"everySeconds": "auto"}),
        ("foo", 1),
        ("trainer", {"command": "x"}),
    ],
)
def test_the_schema_refuses_invalid_fields(field, value):
    job = yaml.safe_load(EXAMPLES[0].read_text())
    job["spec"][field] = value
    assert list(violations(job, schema()))


def violations(value: Any, node: dict[str, Any], path: str = "") -> Iterator[str]:
    """The violations of a structural schema by a value, for the keywords of the CRD."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    kind = kinds[node["type"]] if "type" in node else object if "x-kubernetes-preserve-unknown-fields" in node else (int, str)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        yield f"{path}: is no {node.get('type')}"
        return
    checks = {
        "enum": lambda limit: value in limit,
        "minimum": lambda limit: isinstance(value, str) or value >= limit,
        "maximum": lambda limit: isinstance(value, str) or value <= limit,
        "minLength": lambda limit: len(value) >= limit,
        "maxLength": lambda limit: not isinstance(value, str) or len(value) <= limit,
        "minItems": lambda limit: len(value) >= limit,
        "maxItems": lambda limit: len(value) <= limit,
        "maxProperties": lambda limit: len(value) <= limit,
        "pattern": lambda limit: not isinstance(value, str) or re.search(limit, value),
        "required": lambda limit: set(limit) <= set(value),
    }
    yield from (f"{path}: breaks {name} {node[name]}" for name, holds in checks.items() if name in node and not holds(node[name]))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from violations(item, node["items"], f"{path}[{index}]")
    if isinstance(value, dict):
        for key, item in value.items():
            child = node.get("properties", {}).get(key) or node.get("additionalProperties")
            if child:
                yield from violations(item, child, f"{path}.{key}")
            elif not node.get("x-kubernetes-preserve-unknown-fields") and path != ".metadata":  # the API server knows its other fields
                yield f"{path}.{key}: is unknown"


def defaulted(value: Any, node: dict[str, Any]) -> Any:
    """The value with the defaults that an API server fills in."""
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in node.get("properties", {}).items():
        if name not in filled and "default" in child:
            filled[name] = child["default"]
        if name in filled:
            filled[name] = defaulted(filled[name], child)
    if "additionalProperties" in node:
        filled = {name: defaulted(item, node["additionalProperties"]) for name, item in filled.items()}
    return filled
