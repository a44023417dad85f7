"""Horovod for tests. Its wheel is built once for each build script, PyTorch and Python, and kept in the cache of the harness."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from local_cluster.places import Places

BUILD = Path(__file__).parents[2] / "deploy" / "horovod_wheel.py"
BUILD_SECONDS = 3600.0


def library() -> Path:
    """The folder for PYTHONPATH with Horovod. It is no part of .venv, which has only what pyproject.toml names."""
    places = Places.default()
    script = hashlib.sha256(BUILD.read_bytes()).hexdigest()[:12]
    folder = places.horovod / f"{script}-torch{version('torch')}-{sys.implementation.cache_tag}-{platform.machine()}"
    places.horovod.mkdir(parents=True, exist_ok=True)
    with (places.horovod / "building").open("a") as lock:  # the lock of other builds may be taken for long
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = places.horovod / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            wheel = _run("nice", "-n", "5", sys.executable, str(BUILD), str(unfinished)).strip()
            _run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(unfinished / "package"), wheel)
            (unfinished / "package").rename(folder)
            shutil.rmtree(unfinished)
    return folder


def _run(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""
