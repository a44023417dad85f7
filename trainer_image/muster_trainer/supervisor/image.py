"""Prepares programs to run in any image: finds the Python of the image, and a working directory for the program."""

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
"""Whether this is the copy of a supervisor in another image (`copying`). Programs do not run with the Python of the copy."""

LIBRARY = Path(muster_contract.__file__).parents[3] / "programs"
"""The folder of the copy with the packages that programs may import."""

SCRATCH = "/tmp"


def python_of(environ: Mapping[str, str], *, field: str) -> str:
    """The Python of the image, for programs of the user. Raises BadConfiguration, which names `field`, if there is none."""
    if not COPIED:
        return sys.executable
    path = environ.get("PATH", os.defpath)
    python = shutil.which("python3", path=path) or shutil.which("python", path=path)
    if python is None:
        message = f"the image has neither python3 nor python on its PATH ({path}); write command instead"
        raise BadConfiguration(f"spec.trainer.{field}: {message}")
    return python


def trainer_python_of(environ: Mapping[str, str], *, field: str) -> str:
    """The Python of the image, for Muster's own training loop. Raises BadConfiguration if the image does not have that loop."""
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
    """Copies the job's code to the working directory, and returns the environment for programs. Raises BadConfiguration if that fails."""
    env = dict(environ)
    if "LC_CTYPE" in env and COPIED and b"LC_CTYPE" not in _initial():
        del env["LC_CTYPE"]  # the supervisor's own Python has set it (PEP 538)
    if source := env.pop(NAMES["code"], ""):
        folder = Path.cwd()
        _copy_code(Path(source), folder)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), env.get("PYTHONPATH"))))
    _leave_useless_folder(path_in(env, "state_dir") / "work")
    return {**env, **_account(env)} if COPIED else env


def with_library(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for programs of the user, with `muster_training` at the end of the image's `PYTHONPATH`."""
    if not COPIED:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, (environ.get("PYTHONPATH"), str(LIBRARY))))}


def _leave_useless_folder(instead: Path) -> None:
    """Changes the working directory to `instead` if it is empty and not writable, as in Muster's images, because programs may write to
    relative paths."""
    if os.access(os.curdir, os.W_OK) or not os.access(os.curdir, os.R_OK) or os.listdir():
        return
    instead.mkdir(parents=True, exist_ok=True)
    os.chdir(instead)


def _initial() -> set[bytes]:
    """The names of the variables with which this process was started."""
    return {variable.partition(b"=")[0] for variable in Path("/proc/self/environ").read_bytes().split(b"\0")}


def _copy_code(source: Path, folder: Path) -> None:
    """Copies the files of a ConfigMap, which are links into a hidden folder. The target is the root of a volume, which root may own."""
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
    """The variables of a user account, if the user of the container has none: a writable home and a name, which programs expect."""
    account = {} if os.access(env.get("HOME", "/"), os.W_OK) else {"HOME": SCRATCH}
    try:
        getpass.getuser()
    except (KeyError, OSError):
        account["USER"] = "muster"
    return account
