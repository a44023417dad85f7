"""What a page of Muster's says: the one model behind every report, and its HTML.

A page is a title, findings, a few figures and sections; a section is made of paragraphs, tables and plots. One template draws them all
as one file that needs no other, in light and dark, on paper and on a phone.
"""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import jinja2
import rich.table
from rich.console import Console
from rich.text import Text

from muster.report.plots import NARROW, WIDE, Bars, Lines, svg

Cell = str | int | float | None
FEW_COLUMNS = 10
"""Columns of a table that a page has room for as they are; those of a table with more stand closer."""
WITHOUT_TERMINAL = (160, 24)
"""Columns and lines of what is no terminal."""


@dataclass(frozen=True)
class Table:
    """A table for a page or a terminal. Units stand in the head; a cell is a number wherever it can be, and None where there is nothing.

    A row shorter than the head ends in words on why there is no more: they stand in the place of all other cells.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def numeric(self, column: int) -> bool:
        """Whether the column holds nothing but numbers, and so stands to the right."""
        return not any(isinstance(row[column], str) for row in self.rows if column < len(row) - self.ends_early(row))

    def ends_early(self, row: Sequence[Cell]) -> bool:
        """Whether the last cell of the row stands in the place of others."""
        return len(row) < len(self.head)


@dataclass(frozen=True)
class Story:
    """What happened, in order, a sentence each."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Source:
    """Text as somebody wrote it: a job file, the last words of a process."""

    text: str


@dataclass(frozen=True)
class Finding:
    """What the page has found, as one sentence at its head."""

    sentence: str
    tone: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; a string is a paragraph."""

    title: str
    parts: Sequence[str | Table | Story | Source | Lines | Bars]


@dataclass(frozen=True)
class Page:
    """A report. `figures` are what one reads first: name -> value with its unit."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    findings: Sequence[Finding] = ()
    figures: Mapping[str, str] | None = None


def as_html(page: Page) -> str:
    """The page as the text of one HTML file. ReportError where matplotlib is missing."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"shown": shown, "kind": lambda part: type(part).__name__}
    environment.globals |= {"svg": svg, "WIDE": WIDE, "NARROW": NARROW, "FEW_COLUMNS": FEW_COLUMNS}
    template = environment.from_string(files("muster.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(page=page)


def shown(value: Cell) -> str:
    """A cell as people read it: numbers to three digits that count, and never as powers of ten unless they are tiny."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits)}f}" if digits <= 6 else f"{value:.2e}"


def as_text(table: Table, *, width: int | None = None) -> str:
    """The table for a terminal of `width` columns (default: the terminal's own); wider where words would have to be broken."""
    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    least = 0
    for column, title in enumerate(table.head):
        words = [row[column] for row in [table.head, *table.rows] if column < len(row)]
        least += 2 + max(len(word) for cell in words for word in (shown(cell).split() if column else [shown(cell)]) or [""])
        if table.numeric(column):
            drawn.add_column(Text(title.replace(" ", "\n")), justify="right", vertical="bottom", no_wrap=True)
        else:
            drawn.add_column(Text(title), vertical="bottom", overflow="fold", no_wrap=column == 0)
    for row in table.rows:
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    out = io.StringIO()
    Console(file=out, width=max(least, width or shutil.get_terminal_size(WITHOUT_TERMINAL).columns)).print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
