"""Reads files in folders that processes of a job can write to: only regular files, and within bounds."""

from __future__ import annotations

import os
from pathlib import Path

from muster_contract.regular_files import open_regular as open_regular

MOST_RUN_BYTES = 16 << 20
"""The largest number of bytes of the job and of the status in a run directory."""


def content_of(path: str | Path, limit: int, *, folder: int | None = None) -> bytes:
    """The content of a file. `folder` is the descriptor of the folder that the path is relative to, if any.

    Raises OSError, also if it is not a regular file, and ValueError if it is longer than `limit` bytes."""
    with os.fdopen(open_regular(path, folder=folder), "rb") as file:
        content = file.read(limit + 1)
    return within(path, content, limit)


def tail_of(path: Path, limit: int) -> str:
    """The last `limit` bytes of a file as text. Empty if it cannot be read, or is not a regular file."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def within(name: str | Path, content: bytes, limit: int) -> bytes:
    """The content. Raises ValueError if it is longer than `limit` bytes."""
    if len(content) > limit:
        raise ValueError(f"{name} is longer than {limit} bytes")
    return content
