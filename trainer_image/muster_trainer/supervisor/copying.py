"""`python -m muster_trainer.supervisor.copying FOLDER`: copies the supervisor to a folder, so that it can run in any image.

An init container of Muster's own image runs this, and the trainer container mounts the folder. The copy uses nothing of the image in which
it runs. It has a Python with its standard library, the shared libraries, and the loader of these libraries. So it runs in images with
another C library, with another Python, or without any. The command is

    FOLDER/lib/ld.so --inhibit-cache --library-path FOLDER/lib FOLDER/bin/python -I -S -m muster_trainer.supervisor

It needs no environment variable, so the programs that it starts inherit the environment of the image unchanged.

FOLDER/programs has packages for programs of the user: `muster_training`, and the packages that it needs.
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
_EXCLUDED = shutil.ignore_patterns("__pycache__", "*.a", "site-packages", "dist-packages", *_PACKAGES, *_EXTENSIONS)
"""Files that are not copied, because no supervisor needs them and they need most of the libraries."""
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


class CopyError(Exception):
    """The copy cannot run. The message has the reason."""


def command(folder: Path) -> list[str]:
    """The command that starts the copied Python."""
    library = str(folder / "lib")
    return [f"{library}/ld.so", "--inhibit-cache", "--library-path", library, str(folder / "bin" / "python"), "-I", "-S"]


def copy(folder: Path) -> None:
    """Copies the supervisor and the Python that runs this to `folder`, and starts the copy once. Raises CopyError and OSError."""
    os.umask(0o022)  # the trainer container may run as another user
    for part in ("bin", "lib", "programs"):  # an init container may run twice, and some files cannot be overwritten
        shutil.rmtree(folder / part, ignore_errors=True)
    python = Path(sys.executable).resolve()
    library = folder / "lib"
    modules = library / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(sysconfig.get_path("stdlib"), modules, ignore=_EXCLUDED, ignore_dangling_symlinks=True)
    for package in (Path(muster_contract.__path__[0]), Path(muster_trainer.__path__[0])):
        shutil.copytree(package, modules / package.name, ignore=_EXCLUDED)
    trainer = Path(muster_trainer.__path__[0])
    for source in (Path(muster_contract.__path__[0]), trainer, trainer.parent / "muster_training"):
        shutil.copytree(source, folder / "programs" / source.name, ignore=_EXCLUDED)
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
    """The shared libraries that these files need, directly or indirectly."""
    listed = (subprocess.run([loader, "--list", file], capture_output=True, text=True, check=False).stdout for file in files)
    libraries = {Path(path) for text in listed for path in _LIBRARY.findall(text)}
    return sorted(path for path in libraries if not path.name.startswith("ld-"))


def _try(folder: Path) -> None:
    """Imports all modules of a supervisor in the copy. This proves that the copy starts. It also compiles the modules, because the trainer
    container mounts the folder read-only."""
    imports = "import muster_trainer.supervisor.attempts, muster_trainer.supervisor.signals, ssl, encodings.idna"
    tried = subprocess.run([*command(folder), "-c", imports], env={}, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise CopyError(f"the copy of {sys.executable} in {folder} does not start: {tried.stderr.strip() or tried.returncode}")


if __name__ == "__main__":
    try:
        copy(Path(sys.argv[1]))
    except (CopyError, OSError) as error:
        sys.exit(f"muster: the supervisor cannot be copied to {sys.argv[1]}: {error}")
