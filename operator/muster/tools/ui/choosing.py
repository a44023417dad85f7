"""Which jobs the list shows, in which order and with which columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlencode

from muster.api.figures import duration
from muster.tools.report.page import Cell, shown
from muster.tools.ui.job_rows import Listed

SHOWN_AT_ONCE = 200
"""The number of jobs on one page of the list."""
MOST_COLUMNS = 50
"""The number of columns that are offered. The metrics of programs have any names."""


@dataclass(frozen=True)
class Column:
    """A column of the list. `text` shows a value that is no plain cell."""

    title: str
    value: Callable[[Listed, float], Cell]
    text: Callable[[Cell], str] = shown
    number: bool = False


def _seconds(row: Listed, now: float) -> float | None:
    return None if row.created is None else max(0.0, (row.ended or now) - row.created)


def _where(row: Listed, _: float) -> str:
    return {"cluster": row.namespace, "local": "this machine", "gone": f"{row.namespace}, deleted"}[row.kind]


def _loss(row: Listed, _: float) -> Cell:
    try:
        return float(row.loss)
    except ValueError:
        return row.loss or None


def _minute(time: Cell) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}" if isinstance(time, float) else ""


_COLUMNS = (
    Column("job", lambda row, _: row.name),
    Column("where", _where),
    Column("strategy", lambda row, _: row.strategy),
    Column("state", lambda row, _: row.state),
    Column("queued", lambda row, _: row.queue),
    Column("workers", lambda row, _: row.workers),
    Column("step", lambda row, _: row.step, number=True),
    Column("%", lambda row, _: row.percent, number=True),
    Column("loss", _loss, number=True),
    Column("restarts", lambda row, _: row.restarts, number=True),
    Column("duration", _seconds, lambda value: duration(value) if isinstance(value, float) else "", number=True),
    Column("created, UTC", lambda row, _: row.created, _minute),
)


def _figure(name: str) -> Callable[[Listed, float], Cell]:
    return lambda row, _: row.figures.get(name)


def columns_of(rows: Iterable[Listed], chosen: Sequence[str]) -> tuple[list[Column], list[str]]:
    """The columns of these jobs with the figures that the reader has chosen, and the names of all figures that there are."""
    rows = list(rows)
    names = sorted({name for row in rows for name in row.figures})[:MOST_COLUMNS]
    own = [column for column in _COLUMNS if column.title != "queued" or any(row.queue for row in rows)]
    more = [Column(name, _figure(name), number=True) for name in names if name in chosen]
    return [*own[:-1], *more, own[-1]], names


@dataclass(frozen=True)
class Choice:
    """What the reader wants to see, as the address of the page has it. Empty texts choose all. `sort` is the title of a column, with `-`
    before it for the opposite order. `begin` is the number of jobs that come before the first one."""

    search: str = ""
    state: str = ""
    strategy: str = ""
    label: str = ""
    sort: str = "-created, UTC"
    columns: tuple[str, ...] = ()
    namespace: str = ""
    begin: int = 0

    @classmethod
    def of(cls, query: Iterable[tuple[str, str]]) -> Choice:
        """The choice in the query of an address. What is unknown there is ignored."""
        given: dict[str, list[str]] = {}
        for name, value in query:
            given.setdefault(name, []).append(value.strip())
        texts = {
            name: given[name][-1] for name in ("search", "state", "strategy", "label", "sort", "namespace") if any(given.get(name, ()))
        }
        begin = given.get("begin", [""])[-1]
        columns = tuple(dict.fromkeys(given.get("column", ())))[:MOST_COLUMNS]
        return cls(**texts, columns=columns, begin=int(begin) if begin.isascii() and begin.isdecimal() and len(begin) < 7 else 0)

    def address(self, **changes: object) -> str:
        """The address of the list with these changes of the choice."""
        choice = replace(self, **{"begin": 0, **changes})  # type: ignore[arg-type]
        default = Choice()
        texts = [(name, value) for name, value in vars(choice).items() if name != "columns" and value != vars(default)[name]]
        return f"/?{urlencode([*texts, *(('column', name) for name in choice.columns)])}"

    def sorted_by(self, title: str) -> str:
        """The address with the other order of this column, or with the first one."""
        return self.address(sort=f"-{title}" if self.sort == title else title)

    def order_of(self, title: str) -> str:
        """The order of this column, in the words of `aria-sort`."""
        return {title: "ascending", f"-{title}": "descending"}.get(self.sort, "")

    def has(self, row: Listed) -> bool:
        """Whether the list shows this job."""
        text = f"{row.namespace}/{row.name} {row.message}".casefold()
        return (
            all(word in text for word in self.search.casefold().split())
            and self.state in ("", row.state)
            and self.strategy in ("", row.strategy)
            and all(_fits(row.labels, part.strip()) for part in self.label.split(",") if part.strip())
        )

    def ordered(self, rows: Iterable[Listed], columns: Iterable[Column], now: float) -> list[Listed]:
        """The jobs in the order of the column. Those without a value come last."""
        column = next((each for each in columns if each.title == self.sort.removeprefix("-")), None)
        if column is None:
            return list(rows)
        with_value: list[tuple[tuple[bool, float, str], Listed]] = []
        without: list[Listed] = []
        for row in rows:
            value = column.value(row, now)
            if value in (None, "") or (isinstance(value, float) and math.isnan(value)):
                without.append(row)
            else:
                is_text = isinstance(value, str)
                with_value.append(((is_text, 0.0 if is_text else float(value or 0), str(value).casefold() if is_text else ""), row))
        with_value.sort(key=lambda each: each[0], reverse=self.sort.startswith("-"))
        return [*(row for _, row in with_value), *without]


def _fits(labels: Mapping[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in labels and (not equals or labels[name] == value)
