"""Packs a folder of code into a ConfigMap, which the pods of a job get in their working directory."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from muster.api.constants import JOB_NAME_LABEL
from muster.client import errors
from muster.control.cluster import Object

MOST_BYTES = 1_000_000
"""Bytes of all files together. The API server takes objects of at most 1 MiB, and binary files grow by a third."""
_SKIPPED = ("__pycache__",)  # hidden files are skipped too, because .env and others would be readable in the namespace
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def config_map_of(folder: Path, *, job: str, namespace: str) -> Object:
    """The ConfigMap with the files of `folder`. Its name has a digest of the files, so that each version is an object of its own.

    Raises RefusedError if the folder has no files, has folders with files, or is too large.
    """
    files = _files(folder)
    digest = hashlib.sha256()
    text, binary = {}, {}
    for file in files:
        content = file.read_bytes()
        digest.update(f"{len(file.name)} {file.name} {len(content)} ".encode() + content)
        try:
            text[file.name] = content.decode()
        except UnicodeDecodeError:
            binary[file.name] = base64.b64encode(content).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job}-code-{digest.hexdigest()[:10]}", "namespace": namespace, "labels": {JOB_NAME_LABEL: job}},
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise errors.RefusedError(f"--code: {folder} is not a folder: name the one with your program")
    entries = sorted(each for each in folder.iterdir() if each.name not in _SKIPPED and not each.name.startswith("."))
    if folders := [each.name for each in entries if each.is_dir() and any(each.iterdir())]:
        raise errors.RefusedError(f"--code: {folder} has folders ({', '.join(folders[:3])}), and a ConfigMap cannot: use an image")
    files = [each for each in entries if each.is_file()]
    if not files:
        raise errors.RefusedError(f"--code: there are no files in {folder}")
    if misnamed := [each.name for each in files if not _KEY.fullmatch(each.name)]:
        raise errors.RefusedError(f"--code: {', '.join(misnamed[:3])}: rename it: a ConfigMap takes letters, digits, '-', '_' and '.' only")
    size = sum(each.stat().st_size for each in files)
    if size > MOST_BYTES:
        raise errors.RefusedError(f"--code: {folder} has {size:,} bytes, and a ConfigMap takes {MOST_BYTES:,}: put the code into an image")
    return files
