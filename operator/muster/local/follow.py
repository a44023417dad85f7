"""Follows the files that replicas write: their logs and events. So no output is lost if `muster run` is killed."""

from __future__ import annotations

import os
from pathlib import Path

from muster.local.files import open_regular

CHUNK = 1 << 20


class LogFollower:
    """Reads whole lines. Each call continues where the last one stopped."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def read(self, label: str, log: Path) -> list[str]:
        """The new lines of the log, each after the replica's label."""
        return [f"[{label}] {line}" for line in self.lines(log)]

    def lines(self, log: Path) -> list[str]:
        """The new lines of the log."""
        offset = self._offsets.get(log, 0)
        try:
            with os.fdopen(open_regular(log), "rb") as file:
                file.seek(offset)
                chunk = file.read(CHUNK)
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) == CHUNK:
            end = CHUNK  # a line that is longer than the chunk
        self._offsets[log] = offset + end
        return chunk[:end].decode(errors="replace").splitlines()
