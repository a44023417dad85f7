"""Hooks of mkdocs that show the documentation as the repository shows it (`make docs`).

A link that leaves docs/ points to a copy. A Markdown page becomes a page, another file a page with its text, a folder a page with its
files.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
LARGEST = 200_000
LIST_ITEM = re.compile(r"(?:- |\d+\. )")


def on_files(files: Files, config: Any) -> Files:
    """Adds the copies."""
    todo = [Path(each.abs_src_path) for each in files.documentation_pages() if each.abs_src_path]
    made = set(todo)
    while todo:
        page = todo.pop()
        for target in _targets(page):
            if target in made or target.is_relative_to(ROOT / "docs"):
                continue
            made.add(target)
            if target.suffix == ".md":
                todo.append(target)
            files.append(File.generated(config, _place(target), content=_copy(target), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Points the links at the copies, and writes lists in the syntax of Python-Markdown."""
    here = page.file.src_uri
    source = ROOT / "docs" / here if page.file.abs_src_path else ROOT / here

    def moved(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link[2]))
        if not target.is_relative_to(ROOT) or not target.exists() or here.startswith("source/"):
            return link[0]
        return f"{link[1]}({posixpath.relpath(_place(target), posixpath.dirname(here) or '.')}{link[3] or ''})"

    return "\n".join(_with_lists(LINK.sub(moved, markdown).splitlines()))


def _targets(page: Path) -> Iterator[Path]:
    for _, path, _ in LINK.findall(page.read_text(encoding="utf-8")):
        target = Path(os.path.normpath(page.parent / path))
        if target.is_relative_to(ROOT) and target.exists():
            yield target


def _place(target: Path) -> str:
    """The path in the site."""
    if target.is_relative_to(ROOT / "docs"):
        path = target.relative_to(ROOT / "docs")
        return (path / "README.md" if target.is_dir() else path).as_posix()
    path = target.relative_to(ROOT)
    if path == Path("README.md"):
        return "about.md"
    return path.as_posix() if path.suffix == ".md" else f"source/{path.as_posix()}.md"


def _copy(target: Path) -> str:
    if target.suffix == ".md":
        return target.read_text(encoding="utf-8")
    shown = sorted(each for each in target.iterdir() if each.is_file()) if target.is_dir() else [target]
    return f"# {target.relative_to(ROOT)}\n\n" + "".join(_file(each) for each in shown if each.stat().st_size < LARGEST)


def _file(path: Path) -> str:
    language = {".py": "python", ".yaml": "yaml", ".json": "json"}.get(path.suffix, "text")
    return f"## {path.name}\n\n~~~~~{language}\n{path.read_text(encoding='utf-8')}\n~~~~~\n\n"


def _with_lists(lines: list[str]) -> Iterator[str]:
    """The lists, with a blank line before them, and with the content of each item indented by four."""
    shift, fenced, before = 0, False, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        item = LIST_ITEM.match(line.lstrip())
        if item and not fenced:
            if before.strip() and not indent and not LIST_ITEM.match(before) and not (shift == 2 and before.startswith("  ")):
                yield ""
            if not indent:
                shift = 4 - len(item[0])
        elif line.strip() and not indent:
            shift = 0
        opens = line.lstrip().startswith(("```", "~~~"))
        if ((opens and not fenced) or (item and not fenced)) and indent and before.strip() and not LIST_ITEM.match(before.lstrip()):
            yield ""
        if line.lstrip().startswith("|") and not fenced and before.strip() and not before.lstrip().startswith("|"):
            yield ""
        fenced ^= opens
        yield " " * shift + line if indent and shift else line
        before = line
