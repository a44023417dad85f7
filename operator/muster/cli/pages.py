"""Writes the files that commands make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.refusal import RefusalError
from muster.local.files import open_regular

if TYPE_CHECKING:
    from muster.tools.report.page import Page
    from muster.tools.report.storage import Storage


_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def write(page: Page, output: Path | None, *, default: Path | None = None) -> Path:
    """Writes the page as `write_text` does. Raises RefusalError if it cannot be written."""
    from muster.tools.report.page import as_html

    return write_text(as_html(page), output, default=default, option="--file")


def write_text(text: str, output: Path | None, *, default: Path | None = None, option: str, mode: int = 0o666) -> Path:
    """Writes the file that the user has named in `option`, or else the default one. Returns its path. Raises RefusalError.

    A link in the place of the default file is refused, because the folder may come from others, such as a run directory or a repository.
    """
    file = output or default
    assert file is not None
    try:
        descriptor = os.open(file, _ANEW, mode) if output else open_regular(file, _ANEW, mode=mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as opened:
            opened.write(text)
    except OSError as error:
        is_link = output is None and file.is_symlink()
        reason = "it is a link; remove it, or" if is_link else f"{error.strerror};"
        raise RefusalError(f"{file}: cannot be written: {reason} choose another file with {option}") from error
    click.echo(f"Wrote {file}")
    return file


def history_storage(place: str | Path | None) -> Storage | None:
    """The storage that --history names, or None without one. Raises RefusalError."""
    from muster.tools.report.storage import StorageError, storage_of

    try:
        return None if place is None else storage_of(place)
    except StorageError as error:
        raise RefusalError(f"--history: {error}") from error
