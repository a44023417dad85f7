"""What a supervisor must do to run programs in an image that it knows nothing of: find its Python, and give the program a place to work."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import muster_contract
from muster_contract.environment import NAMES, path_in
from muster_contract.errors import BadConfiguration

COPIED = bool(sys.flags.isolated and sys.flags.no_site)
"""Whether this is the copy of a supervisor in another image (`copying`). Its Python is for itself alone."""

LIBRARY = Path(muster_contract.__file__).parents[3] / "programs"
"""The folder of the copy with what programs may import."""

SCRATCH = "/tmp"


def python_of(environ: Mapping[str, str], *, field: str) -> str:
    """The Python that runs the programs of the image. Raises BadConfiguration, which names the field, if there is none."""
    if not COPIED:
        return sys.executable
    path = environ.get("PATH", os.defpath)
    python = shutil.which("python3", path=path) or shutil.which("python", path=path)
    if python is None:
        message = f"the image has neither python3 nor python on its PATH ({path}); write command instead"
        raise BadConfiguration(f"spec.trainer.{field}: {message}")
    return python


def trainer_python_of(environ: Mapping[str, str], *, field: str) -> str:
    """As `python_of`, for Muster's own training loop. Raises BadConfiguration if the image does not have it."""
    python = python_of(environ, field=field)
    if COPIED:
        tried = subprocess.run([python, "-c", "import muster_trainer.process"], env=dict(environ), capture_output=True, check=False)
        if tried.returncode != 0:
            problem = tried.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise BadConfiguration(
                f"spec.trainer.{field}: needs an image that is built on Muster's trainer image, and {python} of this one has no "
                f"muster_trainer ({problem}); write script or command, or build the image on Muster's"
            )
    return python


def prepared(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for programs, once their code is in the working directory. Raises BadConfiguration if it cannot be put there."""
    env = dict(environ)
    if "LC_CTYPE" in env and COPIED and b"LC_CTYPE" not in _initial():
        del env["LC_CTYPE"]  # our own Python has set it, as PEP 538 says
    if source := env.pop(NAMES["code"], ""):
        folder = Path.cwd()
        _copy_code(Path(source), folder)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), env.get("PYTHONPATH"))))
    _leave_useless_folder(path_in(env, "state_dir") / "work")
    return {**env, **_account(env)} if COPIED else env


def with_library(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for programs of the user, which find `muster_training` in any image. It comes last on the image's `PYTHONPATH`."""
    if not COPIED:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, (environ.get("PYTHONPATH"), str(LIBRARY))))}


def _leave_useless_folder(instead: Path) -> None:
    """Change the working directory if it is empty and cannot be written, as in Muster's images: programs write relative paths."""
    if os.access(os.curdir, os.W_OK) or not os.access(os.curdir, os.R_OK) or os.listdir():
        return
    instead.mkdir(parents=True, exist_ok=True)
    os.chdir(instead)


def _initial() -> set[bytes]:
    """The names of the variables that this process was started with."""
    return {variable.partition(b"=")[0] for variable in Path("/proc/self/environ").read_bytes().split(b"\0")}


def _copy_code(source: Path, folder: Path) -> None:
    """Copy a ConfigMap's files, which are links into a hidden folder. The target is the root of a volume, which may belong to root."""
    try:
        for entry in source.iterdir():
            if entry.name.startswith(".."):
                continue
            if entry.is_dir():
                shutil.copytree(entry, folder / entry.name, dirs_exist_ok=True)
            else:
                shutil.copy(entry, folder)
    except (OSError, shutil.Error) as error:
        raise BadConfiguration(f"spec.trainer.code: cannot be copied into the working directory {folder}: {error}") from None


def _account(env: Mapping[str, str]) -> dict[str, str]:
    """What programs expect of a user account, where the user of the container has none: a writable home and a name."""
    account = {} if os.access(env.get("HOME", "/"), os.W_OK) else {"HOME": SCRATCH}
    try:
        getpass.getuser()
    except (KeyError, OSError):
        account["USER"] = "muster"
    return account
