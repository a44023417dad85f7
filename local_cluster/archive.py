"""Writes container images of one layer, without an engine or a registry.

The format is that of `docker save` (image specification v1.2), which `ctr images import` reads.
"""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .machine import architecture

SEARCH = "PATH=/usr/local/bin:/usr/sbin:/usr/bin"


@dataclass(frozen=True)
class Image:
    """An image to write.

    Attributes:
        name: name with its tag.
        root: folder that becomes its file system.
        entrypoint: path, in the image, of the program that it runs.
    """

    name: str
    root: Path
    entrypoint: str


def write_archive(path: Path, images: Iterable[Image]) -> None:
    """Writes the images into one archive."""
    manifest = []
    with tarfile.open(path, "w") as archive:
        for number, image in enumerate(images):
            layer = path.with_suffix(".layer")
            with tarfile.open(layer, "w") as tar:
                tar.add(image.root, arcname=".", filter=_owned_by_root)
            packed = path.with_suffix(".layer.gz")
            with layer.open("rb") as file, gzip.open(packed, "wb", compresslevel=1) as smaller:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                shutil.copyfileobj(file, smaller, 1 << 20)
            config = {
                "architecture": architecture(),
                "os": "linux",
                "config": {"Env": [SEARCH], "Entrypoint": [image.entrypoint]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{"created_by": "muster cluster harness"}],
            }
            archive.add(packed, arcname=f"{number}/layer.tar")
            layer.unlink()
            packed.unlink()
            _add_text(archive, f"{number}/config.json", json.dumps(config))
            manifest.append({"Config": f"{number}/config.json", "RepoTags": [image.name], "Layers": [f"{number}/layer.tar"]})
        _add_text(archive, "manifest.json", json.dumps(manifest))


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    archive.addfile(entry, io.BytesIO(text.encode()))
