"""Installs the toy as a user would, but without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOY = Path(__file__).parent


def installed(folder: Path) -> dict[str, str]:
    """The environment of a Python that has the toy installed, in this new folder."""
    source, target = folder / "source", folder / "installed"
    shutil.copytree(TOY, source)  # a build leaves files beside its sources
    install = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run([sys.executable, *install], check=True, timeout=120)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))}
