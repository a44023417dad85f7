"""The working directory in which a supervisor starts programs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from muster_trainer.supervisor.image import prepared
if os.getuid() == 0:  # root may write everywhere
    os.setgid(65534)
    os.setuid(65534)
prepared({"MUSTER_STATE_DIR": sys.argv[1], "PATH": os.defpath})
print(os.getcwd())
"""


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder that every user can write. pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder).resolve()


def directory_after(state: Path, here: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(state)], cwd=here, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    ("mode", "files", "stays"),
    [(0o777, [], True), (0o555, ["data.txt"], True), (0o111, [], True), (0o555, [], False)],
)
def test_programs_get_another_folder_only_if_theirs_is_empty_and_read_only(state: Path, mode: int, files: list[str], stays: bool) -> None:
    here = state / "here"
    here.mkdir()
    for name in files:
        (here / name).touch()
    here.chmod(mode)
    directory = directory_after(state, here)
    assert directory == (here if stays else state / "work")
    if not stays:
        assert directory.is_dir()
