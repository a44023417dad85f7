"""The file by which training processes learn that a node of their job goes: `notice.json` in the folder that the replica may write.

The supervisor writes it while a notice holds, and removes it after that. It is a file, because programs of any language below any launcher
can look at it; the pipe of orders reaches only processes of the bundled trainer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from muster_contract.regular_files import open_regular
from muster_contract.reports import NodeNotice
from muster_contract.wire import WireError, encode, parse

NAME = "notice.json"
_LONGEST = 8192


class NewNotices:
    """Notices that hold, each of them once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: NodeNotice | None = None

    def has_come(self) -> bool:
        """Whether there is a notice that differs from that of the last call."""
        before, self._seen = self._seen, read(self._folder)
        return self._seen is not None and self._seen != before


def write(folder: Path, notice: NodeNotice | None) -> None:
    """Replaces the file, or removes it if there is no notice. Raises OSError."""
    path = folder / NAME
    if notice is None:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".new")
    new.write_text(json.dumps(encode(notice)))
    new.replace(path)


def read(folder: Path) -> NodeNotice | None:
    """The notice that holds now. None without one, or if the file cannot be read, because programs may write to the folder too."""
    try:
        descriptor = open_regular(folder / NAME)
    except OSError:
        return None
    try:
        return parse(NodeNotice, os.read(descriptor, _LONGEST))
    except (OSError, WireError):
        return None
    finally:
        os.close(descriptor)
