"""The code of the documentation: job files are valid, Python compiles, and commands, options and make targets exist."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import click.testing
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

import muster
from muster.admission.preset import preset_problems
from muster.admission.read import check_job
from muster.api.constants import API_VERSION, KIND, PRESET_KIND
from muster.api.preset import TrainingPreset
from muster.api.spec import TrainingJobSpec
from muster.cli.main import cli
from muster.tools.measure.comparison import ComparisonFile
from tests.unit.test_docs import PAGES, ROOT

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|;&(]\s*)(?:kubectl )?(muster) (.*)")
TARGETS = {
    target
    for makefile in (ROOT / "Makefile", ROOT / "local_cluster/cluster.mk")
    for target in re.findall(r"^([a-z-]+):", makefile.read_text(), re.MULTILINE)
}
VALUES: dict[str, Any] = json.loads((ROOT / "charts/muster/values.schema.json").read_text())
SPEC: dict[str, Any] = {
    "strategy": "DDP",
    "trainer": {"task": "digits"},
    "roles": {"worker": {"replicas": 2}},
    "batch": {"globalSize": 64},
    "elastic": {"minReplicas": 1, "maxReplicas": 4},
    "scheduling": {},
}
"""What surrounds a part of a spec that a page shows."""
FIELDS = {field.alias or name for name, field in TrainingJobSpec.model_fields.items()}
OF_KUBERNETES = ("PersistentVolumeClaim", "ResourceQuota", "ClusterRole", "MultiKueueCluster", "MultiKueueConfig", "AdmissionCheck")
OFFLINE = {("completion",), ("convert",), ("init",), ("render",), ("schema",), ("validate",)}
FILES = {"job.yaml", "train.py", "examples/digits-ddp.yaml", "examples/other-tools/pytorchjob.yaml"}
KUBECTL = re.compile(
    "annotate|apply|cordon|create|delete|describe|drain|exec|explain|get|krew|label|logs|muster|patch|port-forward|replace|rollout|scale|top|uncordon|wait"
)


class Block(NamedTuple):
    place: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    return [
        Block(f"{page.relative_to(ROOT)}:{number}", language, textwrap.dedent(text))
        for page in PAGES
        for number, (_, language, text) in enumerate(FENCE.findall(page.read_text()), 1)
        if language in languages
    ]


def shell_lines() -> Iterator[tuple[str, str]]:
    """The commands of shell blocks. Where lines begin with `$`, the others are output."""
    for block in blocks("", "sh"):
        lines = block.text.replace("\\\n", " ").splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        for line in lines:
            if not prompted or line.startswith("$ "):
                yield block.place, line.removeprefix("$ ").strip()
    for page in PAGES:
        for code in re.findall(r"(?<!`)`((?:kubectl )?muster [^`]+|make [^`]+)`(?!`)", page.read_text()):
            yield str(page.relative_to(ROOT)), " ".join(code.split())


def wrong_muster_words(words: list[str]) -> str:
    """The fault of a call of `muster`. It is empty if there is none."""
    if not words or words[0].startswith("-"):
        return ""
    command = cli.get_command(click.Context(cli), words[0])
    if command is None:
        return f"no command {words[0]}"
    given = [word for word in words[1:] if word not in ("-h", "--help", "--debug", "[...]")]
    try:
        _, more, _ = command.make_parser(click.Context(command)).parse_args(given)
    except click.UsageError as error:
        mention = isinstance(error, click.BadOptionUsage) and len(words) == 2  # `muster submit --code` in a sentence
        return "" if mention else error.format_message()
    return f"too many arguments: {more}" if more else ""


def words_of(text: str) -> list[str]:
    """The words of one simple command, up to a pipe, a redirection or a comment."""
    try:
        words = shlex.split(re.split(r"\s[|>;#&]|[;)]", text)[0])
    except ValueError:
        words = text.split()
    return words[: words.index("|")] if "|" in words else words


@pytest.mark.parametrize("block", blocks("yaml", "json"), ids=lambda block: block.place)
def test_yaml_parses_and_jobs_presets_and_values_are_valid(block: Block) -> None:
    for document in yaml.safe_load_all(block.text) if block.language == "yaml" else [json.loads(block.text)]:
        kind = document.get("kind", "")
        if kind == KIND:
            check_job(document, source=block.place)
        elif kind == PRESET_KIND:
            assert preset_problems(TrainingPreset.model_validate(document)) == []
        elif document.keys() <= VALUES["properties"].keys():
            jsonschema.validate(document, VALUES)
        elif document.keys() == {"spec"} or document.keys() <= FIELDS:
            spec = {**SPEC, **document.get("spec", document)}
            if not {"task", "module", "script", "command"} & spec["trainer"].keys():
                spec["trainer"] = {**SPEC["trainer"], **spec["trainer"]}
            check_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "job"}, "spec": spec}, source=block.place)
        elif "variants" in document:
            ComparisonFile.model_validate(document)
        else:
            assert block.language == "json" or kind in OF_KUBERNETES or "scrape_configs" in document


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.place)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The modules and the names that a block takes from them. Without an import, `muster` is the client or the training library."""
    modules = {alias.asname or alias.name: alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "muster":
            yield modules.get("muster") or ("muster" if hasattr(muster, node.attr) else "muster_training"), node.attr


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.place)
def test_names_that_python_takes_from_muster_exist(block: Block) -> None:
    for module, name in imports(ast.parse(block.text)):
        if module.partition(".")[0].startswith("muster"):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def is_field(path: str) -> bool:
    """Whether a job has this field below `spec`. The parts of a pod and settings have any names."""
    schema = json.loads((ROOT / "docs/schema/trainingjob.json").read_text())["properties"]["spec"]
    for part in path.split("."):
        inner = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        if not isinstance(inner, dict):
            return schema.get("additionalProperties") is not False
        schema = inner
    return True


def test_the_fields_to_write_in_place_of_those_of_other_tools_exist() -> None:
    rows = [line for line in (ROOT / "docs/tasks/coming-from.md").read_text().splitlines() if line.startswith("| ")]
    named = {path for row in rows for path in re.findall(r"`(\w+(?:\.\w+)+)", row.partition(" | ")[2]) if path.partition(".")[0] in FIELDS}
    assert len(named) > 20
    assert [path for path in sorted(named) if not is_field(path)] == []
    assert not is_field("roles.worker.replica")


def test_commands_of_muster_and_their_options_exist() -> None:
    checked, wrong = 0, []
    for place, line in shell_lines():
        for _, rest in COMMAND.findall(line):
            checked += 1
            if problem := wrong_muster_words(words_of(rest)):
                wrong.append(f"{place}: {line}: {problem}")
    assert checked > 100
    assert not wrong


def test_commands_that_need_no_cluster_and_train_nothing_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the examples and a program, as a reader has them. The tutorials have tests that run all of their commands."""
    commands = {tuple(words_of(rest)) for _, line in shell_lines() for _, rest in COMMAND.findall(line)}
    run = [each for each in sorted(commands) if each[:1] in OFFLINE and FILES.issuperset(word for word in each if "." in word)]
    run = [
        each for each in run if FILES.intersection(each) or each in (("schema",), ("completion", "bash"))
    ]  # others are named in sentences
    run.sort(key=lambda each: each[0] != "init")  # it writes job.yaml, which others read
    assert {each[:1] for each in run} == OFFLINE
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "examples" / "own-script" / "train_ddp.py", tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    results = {" ".join(each): click.testing.CliRunner().invoke(cli, each) for each in run}
    assert {line: result.output for line, result in results.items() if result.exit_code} == {}


def test_make_targets_exist() -> None:
    calls = [(place, line) for place, line in shell_lines() if re.search(r"(?:^|\()make ", line)]
    assert len(calls) > 20
    for place, line in calls:
        words = words_of(line[re.search(r"(?:^|\()make ", line).end() :])
        named = [word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        assert named, f"{place}: {line}"
        assert set(named) <= TARGETS, f"{place}: {line}"


@pytest.mark.parametrize("workflow", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda file: file.name)
def test_workflows_run_make_targets_and_nothing_else(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    runs = [
        (step["run"], job.get("strategy", {}).get("matrix", {}).get("target", [])) for job in jobs for step in job["steps"] if "run" in step
    ]
    assert runs
    for line, targets in runs:
        for target in targets or [""]:
            program, *words = line.replace("${{ matrix.target }}", target).split()
            assert program == "make"
            assert {word for word in words if "=" not in word and '"' not in word} <= TARGETS


def test_kubectl_commands_exist() -> None:
    wrong = []
    for place, line in shell_lines():
        for rest in re.findall(r"(?:^|[|;&(]\s*)kubectl (.*)", line):
            words = re.sub(r"^(?:(?:-n|--namespace|--context)[ =]\S+ )*", "", rest).split()
            if not KUBECTL.fullmatch(words[0]):
                wrong.append(f"{place}: {line}")
    assert not wrong


@pytest.mark.parametrize("line", ["muster fly job.yaml", "muster run job.yaml --fast"])
def test_a_command_or_option_that_does_not_exist_is_a_fault(line: str) -> None:
    [(_, rest)] = COMMAND.findall(line)
    assert wrong_muster_words(words_of(rest))


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r"[\w/.-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert pages - set(named) == set()
    assert set(named) - pages == {"charts/muster/README.md"}
