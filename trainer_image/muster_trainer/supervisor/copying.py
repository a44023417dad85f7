"""`python -m muster_trainer.supervisor.copying FOLDER`: copy the supervisor there, to be started in any other image.

An init container of Muster's own image runs this, and the trainer container mounts the folder. The copy uses nothing of the image that it
is started in: it has a Python with its standard library, the shared libraries, and the loader that loads them. So it runs in images with
another C library, with another Python, or with neither. It is started by

    FOLDER/lib/ld.so --inhibit-cache --library-path FOLDER/lib FOLDER/bin/python -I -S -m muster_trainer.supervisor

and needs no environment variable, so that the programs that it starts inherit the image's environment as it is.

FOLDER/programs has what programs of the user may import: `muster_training`, and the packages that it uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import muster_contract
import muster_trainer

_PACKAGES = ("config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sqlite3", "test", "tkinter", "turtledemo")
_EXTENSIONS = ("_crypt.*", "_curses*", "_dbm.*", "_gdbm.*", "_sqlite3.*", "_test*", "_tkinter.*", "nis.*", "readline.*", "xx*")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.a", "site-packages", "dist-packages", *_PACKAGES, *_EXTENSIONS)
"""No supervisor needs these, and they bring most of the libraries."""
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


class CopyError(Exception):
    """The copy would not run; the message says why."""


def command(folder: Path) -> list[str]:
    """What starts the copied Python."""
    library = str(folder / "lib")
    return [f"{library}/ld.so", "--inhibit-cache", "--library-path", library, str(folder / "bin" / "python"), "-I", "-S"]


def copy(folder: Path) -> None:
    """Copy the supervisor and the Python that runs this into `folder`, and start it there once. Raises CopyError, OSError."""
    os.umask(0o022)  # the trainer container may run as another user
    for part in ("bin", "lib", "programs"):  # an init container may run twice, and some of its files cannot be written over
        shutil.rmtree(folder / part, ignore_errors=True)
    python = Path(sys.executable).resolve()
    library = folder / "lib"
    modules = library / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(sysconfig.get_path("stdlib"), modules, ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
    for package in (Path(muster_contract.__path__[0]), Path(muster_trainer.__path__[0])):
        shutil.copytree(package, modules / package.name, ignore=_LEFT_OUT)
    trainer = Path(muster_trainer.__path__[0])
    for source in (Path(muster_contract.__path__[0]), trainer, trainer.parent / "muster_training"):
        shutil.copytree(source, folder / "programs" / source.name, ignore=_LEFT_OUT)
    (folder / "bin").mkdir()
    shutil.copy(python, folder / "bin" / "python")
    loader = _loader(python)
    shutil.copy(loader, library / "ld.so")
    for file in _libraries(loader, [python, *modules.glob("lib-dynload/*.so")]):
        shutil.copy(file, library)
    _try(folder)


def _loader(python: Path) -> Path:
    """The dynamic loader that an executable names."""
    listed = subprocess.run([python], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=False).stdout
    loader = next((Path(path) for path in _LIBRARY.findall(listed) if "/ld-" in path), None)
    if loader is None:
        raise CopyError(f"{python} names no dynamic loader: a Python for glibc is needed, such as that of python:3.13-slim")
    return loader


def _libraries(loader: Path, files: list[Path]) -> list[Path]:
    """The shared libraries that these files need, and those that they need in turn."""
    listed = (subprocess.run([loader, "--list", file], capture_output=True, text=True, check=False).stdout for file in files)
    libraries = {Path(path) for text in listed for path in _LIBRARY.findall(text)}
    return sorted(path for path in libraries if not path.name.startswith("ld-"))


def _try(folder: Path) -> None:
    """Import all that a supervisor imports: proves that it starts, and leaves compiled modules, for the folder is mounted read-only."""
    imports = "import muster_trainer.supervisor.replica, muster_trainer.supervisor.signals, ssl, encodings.idna"
    tried = subprocess.run([*command(folder), "-c", imports], env={}, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise CopyError(f"the copy of {sys.executable} in {folder} does not start: {tried.stderr.strip() or tried.returncode}")


if __name__ == "__main__":
    try:
        copy(Path(sys.argv[1]))
    except (CopyError, OSError) as error:
        sys.exit(f"muster: the supervisor cannot be copied to {sys.argv[1]}: {error}")
