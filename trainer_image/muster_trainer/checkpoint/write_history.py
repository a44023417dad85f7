"""Writes the history of an attempt into an object store: `python -m muster_trainer.checkpoint.write_history URI FENCE REPLICA`.

Standard input is a JSON object: name of each file -> its text. The supervisor starts this as a process, because it imports no client of an
object store. The last line of the output is `written` or the error.
"""

from __future__ import annotations

import json
import sys

from muster_contract.checkpoint_layout import Fence
from muster_contract.history import STORED_ATTEMPTS
from muster_trainer.checkpoint.objects import ObjectPath


def write(history: ObjectPath, fence: Fence, replica: str, files: dict[str, str]) -> None:
    """Writes the files in their order. Then removes old attempts: of this attempt and those before it, the newest STORED_ATTEMPTS stay.

    Raises OSError.
    """
    for name, text in files.items():
        (history / str(fence) / replica / name).write_bytes(text.encode())
    attempts = sorted((older for each in history.glob("*") if (older := Fence.parse(each.name)) and older <= fence), reverse=True)
    for each in attempts[STORED_ATTEMPTS:]:
        (history / str(each)).remove()


def main(uri: str, fence: str, replica: str) -> int:
    """Writes the files of standard input. Returns 1 if that fails."""
    parsed = Fence.parse(fence)
    assert parsed is not None
    try:
        write(ObjectPath(uri), parsed, replica, json.load(sys.stdin))
    except (OSError, ValueError) as error:
        print(getattr(error, "strerror", None) or error)
        return 1
    print("written")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
