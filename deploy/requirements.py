"""Prints the Python packages that one of the images needs, after pyproject.toml, for the Dockerfile.

requirements.py operator
requirements.py pytorch [base]                   base: torch is in the base image already
requirements.py tensorflow [DISTRIBUTION]        tensorflow-cpu, tensorflow[and-cuda], ...
"""

import re
import sys
import tomllib
from pathlib import Path

STORAGE = "s3"
"""The extra that trainer images have for checkpoints in object stores."""
SUPERVISOR = ("psutil",)
"""What a supervisor needs: trainer images take no more of the operator's packages, so that users' own versions meet none of ours."""


def requirements(project: dict, image: str, variant: str | None) -> list[str]:
    """The requirements of an image, as pip reads them."""
    extra = project["optional-dependencies"][image]
    if image == "operator":
        return [*project["dependencies"], *extra]
    supervisor = [each for each in project["dependencies"] if _name(each) in SUPERVISOR]
    if image == "pytorch" and variant == "base":
        extra = [each for each in extra if _name(each) != "torch"]
    if image == "tensorflow" and variant is not None:
        extra = [each.replace("tensorflow", variant, 1) if _name(each) == "tensorflow" else each for each in extra]
    return [*supervisor, *extra, *project["optional-dependencies"][STORAGE]]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    image, variant = sys.argv[1], next(iter(sys.argv[2:]), None)
    print(*requirements(tomllib.loads(Path("pyproject.toml").read_text())["project"], image, variant), sep="\n")
