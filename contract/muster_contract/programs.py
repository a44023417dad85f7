"""Why the system does not start a program. Its own words name the program where the interpreter in its first line is missing."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress

_LONGEST_FIRST_LINE = 256  # bytes of a first line that Linux reads


def why_not_started(program: str, error: Exception, *, path: str | None = None, folder: str | os.PathLike[str] = ".") -> str:
    """The reason and what to do, for the error of an attempt to start `program` in `folder` with this PATH."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EACCES:
        return "it may not be executed; give it the permission (chmod +x), or name its interpreter first"
    if number == errno.ENOEXEC:
        return "it is no program for this machine; begin a script with a line such as #!/bin/sh, or name its interpreter first"
    file = shutil.which(os.path.join(folder, program) if os.sep in program else program, path=path)
    if number != errno.ENOENT or file is None:
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    interpreter = _interpreter(file)
    if interpreter is None:
        return "the loader that the file needs does not exist here; it is built for another system or C library"
    if "\r" in interpreter:
        return f"its first line names the interpreter {interpreter!r}, because its lines end with CRLF; save the file with LF"
    return f"its first line names the interpreter {interpreter!r}, which does not exist here; install it, or name another one"


def _interpreter(file: str) -> str | None:
    """What the first line of a script names, with the end of a line of Windows; None if it is no script."""
    with suppress(OSError), open(file, "rb") as opened:
        first = opened.readline(_LONGEST_FIRST_LINE)
        if first.startswith(b"#!"):
            return first[2:].strip(b" \t\n").decode(errors="replace")
    return None
