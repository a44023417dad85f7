"""Writes deploy/locks. With --check, prints the locks that no longer meet pyproject.toml: `deploy/lock.py [--check]`.

A write uses the package index of uv. The locks name no index. They are valid for Linux on amd64 and arm64 and for every Python that Muster
supports. A check needs no network.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parent))
from requirements import LOCKS, requirements

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "locks"
OLDEST_PYTHON = "3.11"
HEADER = "# Generated from pyproject.toml by `make locks`; do not edit.\n"
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)(?: ; ([^\\]+?))? \\$", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Writes or checks all locks."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    required = {name: requirements(pyproject, *arguments) for name, arguments in LOCKS.items()}
    if "--check" not in arguments:
        FOLDER.mkdir(exist_ok=True)
        for name, lines in required.items():
            (FOLDER / f"{name}.txt").write_text(HEADER + compiled(lines))
        return 0
    stale = [f"deploy/locks/{name}.txt: {fault}" for name, lines in required.items() for fault in faults(FOLDER / f"{name}.txt", lines)]
    if stale:
        print(*stale, "run `make locks`", sep="\n", file=sys.stderr)
    return 1 if stale else 0


def compiled(lines: list[str]) -> str:
    """The newest versions that meet the requirements, with the hashes of all their files."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", "--upgrade"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "-"]
    tool = Path(sys.executable).with_name(command[0])
    done = subprocess.run([str(tool), *command[1:]], input="\n".join(lines), capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def faults(file: Path, lines: list[str]) -> list[str]:
    """The requirements that the lock does not meet, on the newest and on the oldest Python."""
    if not file.exists():
        return ["missing"]
    locked: dict[str, list[tuple[str, str]]] = {}
    for name, version, marker in _ENTRY.findall(file.read_text()):
        locked.setdefault(canonicalize_name(name), []).append((version, marker))
    messages = []
    for line in lines:
        requirement = Requirement(line)
        entries = locked.get(canonicalize_name(requirement.name), [])
        for python in (OLDEST_PYTHON, "3.13"):
            versions = [version for version, marker in entries if not marker or _holds(marker, python)]
            if len(versions) != 1 or not requirement.specifier.contains(versions[0], prereleases=True):
                messages.append(f"has {', '.join(versions) or 'nothing'} for {line} on Python {python}")
    return messages


def _holds(marker: str, python: str) -> bool:
    linux = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
    return Marker(marker).evaluate({**linux, "python_version": python, "python_full_version": f"{python}.9"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
