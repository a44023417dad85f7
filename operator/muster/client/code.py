"""Packs code into a ConfigMap, which the pods of a job get in their working directory."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from muster.api.constants import JOB_NAME_LABEL
from muster.client import errors
from muster.kubernetes.objects import Object
from muster_contract.text import printable

Code = Path | Mapping[str, bytes]
"""The program of a job: a folder, or the contents of files by name."""
MOST_BYTES = 1_000_000
"""Bytes of all files and their names together. The API server takes objects of at most 1 MiB, and binary files grow by a third."""
_SKIPPED = ("__pycache__",)  # hidden files are skipped too, because .env and others would be readable in the namespace
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def config_map_of(code: Code, *, job: str, namespace: str) -> Object:
    """The ConfigMap with the files of `code`. Its name has a digest of the files, so that each version is an object of its own.

    Raises RefusedError if a folder has no files, has links or folders with files, or is too large.
    """
    digest = hashlib.sha256()
    text, binary = {}, {}
    for name, content in (_contents(code) if isinstance(code, Path) else code).items():
        digest.update(f"{len(name)} {name} {len(content)} ".encode() + content)
        try:
            text[name] = content.decode()
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(content).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job}-code-{digest.hexdigest()[:10]}", "namespace": namespace, "labels": {JOB_NAME_LABEL: job}},
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }


def _contents(folder: Path) -> dict[str, bytes]:
    """The files of the folder by name. All is read through one open folder and without following links, because the folder may be a cloned
    repository, and a link in it could name a file with credentials."""
    with _opened(folder) as directory:
        names = sorted(name for name in os.listdir(directory) if name not in _SKIPPED and not name.startswith("."))
        kinds = {name: os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode for name in names}
        if links := [name for name in names if stat.S_ISLNK(kinds[name])]:
            raise errors.RefusedError(f"--code: {folder}: {_few(links)} is a link: put the file itself there, or remove the link")
        if folders := [name for name in names if stat.S_ISDIR(kinds[name]) and _has_entries(name, directory)]:
            raise errors.RefusedError(f"--code: {folder} has folders ({_few(folders)}), and a ConfigMap cannot: use an image")
        if others := [name for name in names if not stat.S_ISDIR(kinds[name]) and not stat.S_ISREG(kinds[name])]:
            raise errors.RefusedError(f"--code: {folder}: {_few(others)} is a pipe, a socket or a device: remove it")
        files = [name for name in names if stat.S_ISREG(kinds[name])]
        if not files:
            raise errors.RefusedError(f"--code: there are no files in {folder}")
        if misnamed := [name for name in files if not _KEY.fullmatch(name)]:
            raise errors.RefusedError(f"--code: {_few(misnamed)}: rename it: a ConfigMap takes letters, digits, '-', '_' and '.' only")
        contents: dict[str, bytes] = {}
        size = 0
        for name in files:
            contents[name] = _content(name, directory)
            size += len(name) + len(contents[name])
            if size > MOST_BYTES:
                raise errors.RefusedError(
                    f"--code: {folder} has more than the {MOST_BYTES:,} bytes that a ConfigMap takes: put the code into an image"
                )
        return contents


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder itself may be reached through links, because the user has named it."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.RefusedError(f"--code: {folder} is not a folder that can be read: name the one with your program") from error
    try:
        yield directory
    except OSError as error:
        raise errors.RefusedError(f"--code: {folder}: {error.filename or 'a file'} cannot be read: {error.strerror}") from error
    finally:
        os.close(directory)


def _content(name: str, directory: int) -> bytes:
    """The file may have changed since it was listed. O_NONBLOCK: a pipe would wait for a writer."""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise errors.RefusedError(f"--code: {name} is no longer a file: try again")
        return file.read(MOST_BYTES + 1)


def _has_entries(name: str, directory: int) -> bool:
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return bool(os.listdir(folder))
    finally:
        os.close(folder)


def _few(names: list[str]) -> str:
    return printable(", ".join(names[:3]))
