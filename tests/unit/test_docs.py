"""The links of the documentation are valid, the files that it names exist, and its lines wrap."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from local_cluster.programs import KUBERNETES, OLDEST_KUBERNETES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/**/*.md"), *ROOT.glob("local_cluster/*.md")])
GUIDES = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent.name not in ("reference", "runbooks")]
"""The pages that people read from the top."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
WIDTH = 100


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_a_sentence_and_not_with_code(page: Path) -> None:
    [title, first] = [line for line in page.read_text().splitlines() if line and not line.startswith("<!--")][:2]
    assert re.match(r"# [A-Z][^`]*$", title)
    assert re.match(r"\w|\[|\| ", first)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_wrap_at_a_hundred_characters(page: Path) -> None:
    """Tables and code cannot wrap, and may be longer."""
    long, code = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if not code and not line.lstrip().startswith("|") and len(line) > WIDTH:
            long.append(number)
    assert not long


def test_the_figures_of_what_a_loss_costs_are_on_the_pages_that_they_link_to() -> None:
    page = ROOT / "docs" / "tasks" / "when-something-dies.md"
    figures = {
        (target, figure)
        for text, target in re.findall(r"\[([^\]]+)\]\(([^)#]+)[^)]*\)", page.read_text())
        for figure in re.findall(r"\d+(?:\.\d+)?", text)
    }
    assert len(figures) > 25
    linked = {target: re.findall(r"\d+(?:\.\d+)?", (page.parent / target).read_text()) for target, _ in figures}
    assert [(target, figure) for target, figure in sorted(figures) if figure not in linked[target]] == []


def test_the_files_that_the_page_on_architecture_names_exist() -> None:
    table = (ROOT / "docs" / "architecture" / "README.md").read_text().partition("## Where to look")[2]
    named = set(re.findall(r"`([\w.]+/[\w./]+)`", table))
    folders = (ROOT, ROOT / "operator" / "muster")
    assert named
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []


def test_no_page_and_no_message_tells_to_install_muster_from_an_index() -> None:
    """No index has it, so a stranger could take its name. A checkout has it: `pip install .`. A file of a release has it too."""
    folders = ("operator", "contract", "trainer_image", "examples", "charts")
    texts = [*PAGES, *(file for folder in folders for file in ROOT.glob(f"{folder}/**/*"))]
    named = re.compile(r"pip install(?![^\n`]*\.whl)[^\n`]{0,80}\bmuster[-_]\w", re.IGNORECASE)
    assert [file for file in texts if file.suffix in (".md", ".py", ".yaml", ".txt", ".ipynb") and named.search(file.read_text())] == []


def test_the_tested_versions_are_those_that_the_tests_use() -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in (ROOT / "docs" / "support.md").read_text().splitlines() if "|" in line]
    tested = {row[1]: row[3] for row in rows if row[1]}
    for name, lock, package in (
        ("PyTorch", "pytorch", "torch"),
        ("TensorFlow", "tensorflow", "tensorflow"),
        ("JAX", "jax", "jax"),
        ("Ray", "ray", "ray"),
    ):
        [version] = re.findall(rf"^{package}(?:\[.*\])?==(\S+)", (ROOT / "deploy" / "locks" / f"{lock}.txt").read_text(), re.MULTILINE)
        assert tested[name] == version
    modules = {
        folder: re.search(
            rf"^\s*(?:require )?{module} v(\S+)$", (ROOT / "local_cluster" / "go" / folder / "go.mod").read_text(), re.MULTILINE
        )
        for folder, module in (
            ("kueue", "sigs.k8s.io/kueue"),
            ("kueue-oldest", "sigs.k8s.io/kueue"),
            ("scheduler-plugins", "sigs.k8s.io/scheduler-plugins"),
            ("karpenter", "sigs.k8s.io/karpenter"),
        )
    }
    assert all(modules.values())
    assert tested["Kueue"] == ", ".join(modules[name][1] for name in ("kueue", "kueue-oldest"))
    assert tested["scheduler-plugins"] == modules["scheduler-plugins"][1]
    assert tested["Karpenter"].partition(",")[0] == modules["karpenter"][1]
    assert tested["Kubernetes"] == KUBERNETES.removeprefix("v")
    assert OLDEST_KUBERNETES.removeprefix("v") in [row[3] for row in rows]
