"""The model of a report page, and its HTML.

A page has a title, findings, a few figures and sections. A section has paragraphs, tables and plots. One template makes a single
self-contained file of any page. It supports light and dark mode, paper and small screens.
"""

from __future__ import annotations

import io
import math
import shutil
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Literal

import jinja2
import rich.table
from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from muster.tools.report.plots import Bars, Lines, plot_data

Cell = str | int | float | None
UPLOT = "uplot"
"""The folder with the files of uPlot."""
FEW_COLUMNS = 10
"""Tables with more columns than this use a smaller font and less space."""
WITHOUT_TERMINAL = (160, 24)
"""Columns and lines if the output is not a terminal."""


@dataclass(frozen=True)
class Table:
    """A table for a page or a terminal. The head has the units. A cell is a number if possible, and None if it has no value.

    A row may be shorter than the head. Its last cell is then a text that fills all missing cells, such as `failed`.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def numeric(self, column: int) -> bool:
        """Whether the column has only numbers, which are aligned to the right."""
        return not any(isinstance(row[column], str) for row in self.rows if column < len(row) - self.ends_early(row))

    def ends_early(self, row: Sequence[Cell]) -> bool:
        """Whether the last cell of the row fills the missing cells."""
        return len(row) < len(self.head)


@dataclass(frozen=True)
class Story:
    """What happened, in order, with a sentence for each event."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Source:
    """Text that is shown unchanged, such as a job file or the last lines of a log."""

    text: str


@dataclass(frozen=True)
class Folded:
    """Text as in a Source, of which only the summary shows at first."""

    summary: str
    text: str


@dataclass(frozen=True)
class Places:
    """Names and addresses. Those of web pages are links. Tenants choose the addresses."""

    places: Sequence[tuple[str, str]]

    def is_link(self, address: str) -> bool:
        """Whether the address is that of a web page. Others, such as `javascript:`, are text."""
        return address.startswith(("http://", "https://"))


@dataclass(frozen=True)
class Finding:
    """A result, as one sentence at the top of the page."""

    sentence: str
    tone: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it. A string is a paragraph."""

    title: str
    parts: Sequence[str | Table | Story | Source | Folded | Places | Lines | Bars]


@dataclass(frozen=True)
class Page:
    """A report. `figures` are the most important values: name -> value with its unit."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    findings: Sequence[Finding] = ()
    figures: Mapping[str, str] | None = None


def as_html(page: Page) -> str:
    """The page as the text of one HTML file. Browsers run no other script in it than that of its plots."""
    scripts = [file_text(UPLOT, "uPlot.iife.min.js"), file_text("plots.js")]
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'; form-action 'none'"
    template = environment().get_template("page.html.j2")
    return template.render(page=page, css=Markup(style()), policy=policy, scripts=[Markup(script) for script in scripts])


def environment(*folders: jinja2.BaseLoader) -> jinja2.Environment:
    """Templates of this package and of further ones. `parts.html.j2` draws the findings, figures and sections of `page`."""
    loader = jinja2.ChoiceLoader([*folders, jinja2.PackageLoader("muster.tools.report", ".")])
    jinja = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"shown": shown, "plot_data": plot_data, "kind": lambda part: type(part).__name__}
    jinja.globals |= {"share": lambda part, whole: f"{100 * part / whole:.4g}%", "FEW_COLUMNS": FEW_COLUMNS}
    return jinja


@cache
def style() -> str:
    """The style sheet of all pages."""
    return file_text(UPLOT, "uPlot.min.css") + file_text("page.css")


@cache
def file_text(*path: str) -> str:
    """A file of this package."""
    return files("muster.tools.report").joinpath(*path).read_text(encoding="utf-8")


def shown(value: Cell) -> str:
    """The text of a cell. Numbers have three significant digits; only tiny ones have an exponent."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits)}f}" if digits <= 6 else f"{value:.2e}"


def as_text(table: Table, *, width: int | None = None) -> str:
    """The table as text for a terminal of `width` columns (default: those of this terminal). It is wider if words would be broken."""
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
