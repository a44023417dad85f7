"""Releases of this checkout, and programs that run far away from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

from local_cluster.machine import architecture

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
UV = Path(sys.executable).with_name("uv")
PLATFORM = f"linux-{architecture()}"
SECONDS = 580.0
Run = Callable[..., subprocess.CompletedProcess[str]]


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Runs a program without the variables that lead Python to the checkout or to its environment."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean | (env or {}), capture_output=True, text=True, timeout=seconds, check=False
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def committed(folder: Path) -> Path:
    """The files of the checkout as a repository with one commit, which is always the same."""
    listed = succeeded(run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT))
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    when = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "Everything"]):
        succeeded(run("git", *words, cwd=folder, env=when))
    return folder


def release(
    checkout: Path, *arguments: str, env: dict[str, str] | None = None, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Builds parts of a release."""
    return run(sys.executable, "deploy/release.py", *arguments, cwd=checkout, env=env, seconds=seconds)


def install_plugin(dist: Path, folder: Path) -> None:
    """Puts the plug-in of this platform into the folder."""
    with tarfile.open(dist / f"kubectl-muster-{VERSION}-{PLATFORM}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def install_wheel(dist: Path, folder: Path) -> Path:
    """Makes a new environment in the folder, with the wheel and what commands on a cluster need. Returns `muster` of the wheel."""
    [wheel] = dist.glob("*.whl")
    succeeded(run(UV, "venv", "--quiet", "--python", sys.executable, "venv", cwd=folder))
    lock = ROOT / "deploy" / "locks" / "client.txt"
    succeeded(run(UV, "pip", "install", "--quiet", "--python", "venv", "--constraint", lock, f"{wheel}[cluster]", cwd=folder))
    return folder / "venv" / "bin" / "muster"
