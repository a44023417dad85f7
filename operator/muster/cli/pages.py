"""Writes a page to a file or to standard output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.refusal import RefusalError

if TYPE_CHECKING:
    from muster.tools.report.page import Page
    from muster.tools.report.storage import Storage


def write(page: Page, target: Path) -> None:
    """Raises RefusalError if the page cannot be drawn or written."""
    from muster.tools.report.history import ReportError
    from muster.tools.report.page import as_html

    try:
        target.write_text(as_html(page), encoding="utf-8", errors="backslashreplace")
    except ReportError as error:
        raise RefusalError(str(error)) from error
    except OSError as error:
        raise RefusalError(f"{target}: cannot be written: {error.strerror}; choose another file with --output") from error
    click.echo(f"Wrote {target}")


def history_storage(place: str | Path | None) -> Storage | None:
    """The storage that --history names, or None without one. Raises RefusalError."""
    from muster.tools.report.storage import StorageError, storage_of

    try:
        return None if place is None else storage_of(place)
    except StorageError as error:
        raise RefusalError(f"--history: {error}") from error
