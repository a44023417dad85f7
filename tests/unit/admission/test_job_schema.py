"""The JSON schema for editors. It accepts every job that Muster accepts, and has the sentences of the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from muster.admission import crd, definitions
from muster.admission.job_schema import DEFAULT_FILE, job_schema, text
from muster.admission.validate import problems
from muster.api.job import TrainingJob
from muster.cli.schema import schema as schema_command
from muster.strategies.registry import STRATEGIES
from tests.support.api_server.jobs import job
from tests.support.golden_jobs import JOBS as GOLDEN_JOBS
from tests.support.rule_examples import RIGHT, WRONG

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make setup")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(
    set((ROOT / "examples").rglob("*.yaml")) - {*(ROOT / "examples").glob("compare-*.yaml"), *(ROOT / "examples/other-tools").iterdir()}
)
SCHEMA = job_schema(list(STRATEGIES.values()))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
COMPARES_TWO_FIELDS = [
    spec for spec in WRONG if "elastic" in spec and spec["elastic"] != {"minReplicas": 1, "maxReplicas": 4}
]  # JSON schema cannot compare two fields


def sentences(document: Any) -> list[str]:
    """The errors that an editor shows for a document."""
    return [error.schema.get("errorMessage", error.message) for error in VALIDATOR.iter_errors(document)]


def test_the_schema_is_a_json_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_schema_accepts_the_examples(path):
    assert sentences(yaml.safe_load(path.read_text())) == []


def test_the_schema_accepts_the_jobs_of_the_golden_files():
    document = job("golden")
    assert {name: errors for name, spec in GOLDEN_JOBS.items() if (errors := sentences({**document, "spec": spec}))} == {}


@pytest.mark.parametrize("spec", RIGHT, ids=str)
def test_the_schema_accepts_jobs_that_the_rules_accept(spec):
    assert sentences(job("digits", **spec)) == []


@pytest.mark.parametrize("spec", [spec for spec in WRONG if spec not in COMPARES_TWO_FIELDS], ids=str)
def test_the_schema_refuses_a_job_with_the_sentence_of_the_rule(spec):
    [problem] = problems(TrainingJob.model_validate(job("digits", **spec)))
    [sentence] = sentences(job("digits", **spec))
    assert problem.message.split(", not ")[0] in sentence


def test_only_comparisons_of_two_fields_are_left_to_muster():
    assert len(COMPARES_TWO_FIELDS) == 3


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"foo": 1}, "'foo' was unexpected"),
        ({"batch": {"globalsize": 64}}, "'globalsize' was unexpected"),
        ({"trainer": {"task": "digits", "input": {"reader": 1}}}, "'reader' was unexpected"),
        ({"strategy": "DPP"}, "'DPP' is not one of"),
        ({"suspend": "yes"}, "is not of type 'boolean'"),
        ({"batch": {"globalSize": 0}}, "less than the minimum of 1"),
        ({"checkpoint": {"keep": 1}}, "less than the minimum of 2"),
        ({"cleanPodPolicy": "Never"}, "is not one of ['Running', 'All', 'None']"),
        ({"roles": {"worker": {"resources": {"limits": {"cpu": 0.5}}}}}, "is not of type 'integer', 'string'"),
        ({"roles": {"worker": {"template": {"kind": "Pod"}}}}, "'kind' was unexpected"),
    ],
    ids=str,
)
def test_the_schema_refuses_unknown_fields_and_wrong_values(spec, sentence):
    assert any(sentence in each for each in sentences(job("digits", **spec)))


def test_the_schema_requires_the_fields_that_kubectl_requires():
    whole = job("digits")
    for name in ("apiVersion", "kind", "metadata", "spec"):
        without = {key: value for key, value in whole.items() if key != name}
        assert f"'{name}' is a required property" in sentences(without)
    assert sentences({**whole, "apiVersion": "muster.dev/v1alpha1"}) == []
    assert "'muster.dev/v1' is not one of" in sentences({**whole, "apiVersion": "muster.dev/v1"})[0]
    assert sentences({**whole, "kind": "PyTorchJob"}) == ["'TrainingJob' was expected"]
    assert sentences({**whole, "metadata": {"name": "My Job"}})[0].startswith("metadata.name: must be at most 44 lower-case letters")


def test_fields_that_the_api_server_allows_are_allowed():
    document = job("digits", trainer={"task": "digits", "config": {"anything": [1, {"a": None}]}})
    document["metadata"] |= {"uid": "1", "managedFields": [{}], "labels": {"a": "b"}}
    document["spec"]["roles"]["worker"]["template"] = {
        "spec": {"tolerations": [{"key": "gpu"}], "containers": [{"name": "a", "tty": True}]}
    }
    assert sentences({**document, "status": {"phase": "Running"}}) == []


def test_fields_have_descriptions_and_constant_defaults():
    spec = SCHEMA["properties"]["spec"]["properties"]
    assert all(each.get("description") for each in spec.values())
    assert spec["checkpoint"]["properties"]["keep"]["default"] == 3


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for each in node.values():
            yield from patterns(each)
    elif isinstance(node, list):
        for each in node:
            yield from patterns(each)


def test_patterns_have_a_syntax_that_javascript_accepts():
    """Editors compile them with the flag u, which allows only escapes that mean something, and no inline flags."""
    for pattern in set(patterns(SCHEMA)):
        re.compile(pattern)
        assert "(?" not in pattern
        assert set(re.findall(r"\\(.)", pattern)) <= set(".dDwWsS/()[]{}*+?|^$\\"), pattern


def test_the_published_file_is_current():
    assert (ROOT / DEFAULT_FILE).read_text() == text(), "run `make crd`"


def test_the_published_file_is_checked_with_the_definition(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(definitions, "text", lambda: "the definition, which takes seconds")
    assert crd.main([]) == 0
    assert crd.main(["--check"]) == 0
    DEFAULT_FILE.write_text(DEFAULT_FILE.read_text().replace("Immutable", "Mutable"))
    assert crd.main(["--check"]) == 1
    assert f"{DEFAULT_FILE} is stale" in capsys.readouterr().err


def test_the_command_prints_the_schema_for_the_installed_strategies():
    result = CliRunner().invoke(schema_command, [])
    assert result.exit_code == 0
    assert json.loads(result.output) == job_schema(list(STRATEGIES.values()))
