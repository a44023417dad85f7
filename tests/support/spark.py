"""PySpark for the tests that start it, in a folder of its own: it is half a gigabyte, and needs an older pandas than other tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from local_cluster.places import Places

VERSION = "4.3.0"
PACKAGES = (f"pyspark=={VERSION}", "py4j==0.10.9.9", "pandas>=2.3,<3", "pytz")
"""Without what the environment of the tests has: these packages come before its own."""


def pyspark_folder() -> Path:
    """The folder with PySpark, for PYTHONPATH. The first call downloads it."""
    assert shutil.which("java"), "the tests of Spark need Java: on Debian, apt-get install openjdk-17-jre-headless"
    cache = Places.default().cache
    folder = cache / f"pyspark-{VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pyspark-", dir=cache) as name:
            target = Path(name, "new")
            words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *PACKAGES]
            subprocess.run(words, check=True, timeout=550)
            with suppress(OSError):  # another process was faster
                target.rename(folder)
    return folder
