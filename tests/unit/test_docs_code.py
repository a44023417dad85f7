"""The code of the documentation: job files are valid, Python compiles, and commands, options and make targets exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import click
import pytest
import yaml

from muster.admission.read import check_job
from muster.api.constants import KIND
from muster.cli.main import cli
from tests.unit.test_docs import PAGES, ROOT

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|;&(]\s*)(?:kubectl )?(muster) (.*)")
TARGETS = {
    target
    for makefile in (ROOT / "Makefile", ROOT / "local_cluster/cluster.mk")
    for target in re.findall(r"^([a-z-]+):", makefile.read_text(), re.MULTILINE)
}
KUBECTL = re.compile(
    "annotate|apply|cordon|create|delete|describe|drain|exec|explain|get|label|logs|muster|port-forward|rollout|scale|top|uncordon|wait"
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
    options = {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)} | {"-h", "--help", "--debug"}
    unknown = [word for word in words[1:] if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options]
    return f"{words[0]} has no {unknown}" if unknown else ""


def words_of(text: str) -> list[str]:
    """The words of one simple command, up to a pipe, a redirection or a comment."""
    try:
        words = shlex.split(re.split(r"\s[|>;#&]|[;)]", text)[0])
    except ValueError:
        words = text.split()
    return words[: words.index("|")] if "|" in words else words


@pytest.mark.parametrize("block", blocks("yaml", "json"), ids=lambda block: block.place)
def test_yaml_parses_and_jobs_are_valid(block: Block) -> None:
    for document in yaml.safe_load_all(block.text) if block.language == "yaml" else [json.loads(block.text)]:
        if isinstance(document, dict) and document.get("kind") == KIND:
            check_job(document, source=block.place)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.place)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_commands_of_muster_and_their_options_exist() -> None:
    checked, wrong = 0, []
    for place, line in shell_lines():
        for _, rest in COMMAND.findall(line):
            checked += 1
            if problem := wrong_muster_words(words_of(rest)):
                wrong.append(f"{place}: {line}: {problem}")
    assert checked > 100
    assert not wrong


def test_make_targets_exist() -> None:
    calls = [(place, line) for place, line in shell_lines() if re.search(r"(?:^|\()make ", line)]
    assert len(calls) > 20
    for place, line in calls:
        words = words_of(line[re.search(r"(?:^|\()make ", line).end() :])
        named = [word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        assert named, f"{place}: {line}"
        assert set(named) <= TARGETS, f"{place}: {line}"


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
