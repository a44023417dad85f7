"""Installs the packages that a base image lacks, in the versions of a lock: `install_over_base.py LOCK RANGES`.

The base image has torch and many other packages in versions that a lock cannot list. pip decides which packages are missing or too old for
RANGES. These are installed with the versions and hashes of the lock. A LOCK without hashes (LOCKED=false) is installed unchanged.
"""

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==[^\n]*(?:\n[ \t]+--hash[^\n]*)*", re.MULTILINE)


def main(lock: Path, ranges: Path) -> None:
    """Installs the packages, then runs pip check on all of them."""
    text = lock.read_text()
    if "--hash=" not in text:
        _pip("install", "-r", str(ranges))
        return
    entries = [(_canonical(match[1]), match[0]) for match in _ENTRY.finditer(text)]
    brought = {_canonical(each.name) for each in distributions()}
    with tempfile.TemporaryDirectory() as name:
        pins, plan, missing = (Path(name) / each for each in ("pins.txt", "plan.json", "missing.txt"))
        pins.write_text("".join(re.sub(r"[ \t]*\\?\n[ \t]+--hash\S*", "", entry) + "\n" for each, entry in entries if each not in brought))
        _pip("install", "--dry-run", "--quiet", "--report", str(plan), "-c", str(pins), "-r", str(ranges))
        chosen = {_canonical(each["metadata"]["name"]) for each in json.loads(plan.read_text())["install"]}
        unlocked = chosen - {each for each, _ in entries}
        if unlocked:
            sys.exit(f"the base needs {', '.join(sorted(unlocked))}, and the lock has none: build with --build-arg LOCKED=false")
        missing.write_text("--require-hashes\n" + "\n".join(entry for each, entry in entries if each in chosen))
        _pip("install", "--no-deps", "-r", str(missing))
    _pip("install", "--dry-run", "--quiet", "--no-index", "-r", str(ranges))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
