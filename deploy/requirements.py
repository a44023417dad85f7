"""Prints what pip installs into one of the images, for the Dockerfile: the lock of deploy/locks, or what pyproject.toml asks for.

requirements.py operator [--ranges]
requirements.py pytorch [base] [--ranges]             base: torch is in the base image already
requirements.py tensorflow [DISTRIBUTION] [--ranges]  tensorflow-cpu, tensorflow[and-cuda]; with --ranges any other
requirements.py build                                 what builds Muster's own package

A lock names every package with its version and hashes. `--ranges` prints pyproject.toml's requirements instead.
"""

import re
import sys
import tomllib
from pathlib import Path

STORAGE = "s3"
"""The extra that trainer images have for checkpoints in object stores."""
SUPERVISOR = ("psutil",)
"""What a supervisor needs: trainer images take no more of the operator's packages, so that users' own versions meet none of ours."""
LOCKS = {
    "operator": ("operator", None),
    "pytorch": ("pytorch", None),
    "pytorch-base": ("pytorch", "base"),
    "tensorflow": ("tensorflow", "tensorflow[and-cuda]"),
    "tensorflow-cpu": ("tensorflow", "tensorflow-cpu"),
    "build": ("build", None),
}
"""Name of each lock, and the image and variant that it is for."""


def requirements(pyproject: dict, image: str, variant: str | None) -> list[str]:
    """The requirements of an image, as pip reads them."""
    if image == "build":
        return list(pyproject["build-system"]["requires"])
    project = pyproject["project"]
    extra = project["optional-dependencies"][image]
    if image == "operator":
        return [*project["dependencies"], *extra]
    supervisor = [each for each in project["dependencies"] if _name(each) in SUPERVISOR]
    if image == "pytorch" and variant == "base":
        extra = [each for each in extra if _name(each) != "torch"]
    if image == "tensorflow" and variant is not None:
        extra = [each.replace("tensorflow", variant, 1) if _name(each) == "tensorflow" else each for each in extra]
    return [*supervisor, *extra, *project["optional-dependencies"][STORAGE]]


def lock(image: str, variant: str | None) -> str:
    """The lock, with pip's option to install nothing without a hash. Raises LookupError where there is none."""
    for name, of in LOCKS.items():
        if of == (image, variant) or (variant in ("pip", None) and of[0] == image):
            return f"--require-hashes\n{(Path('deploy/locks') / f'{name}.txt').read_text()}"
    raise LookupError(f"deploy/locks has no lock for {variant}: build with --build-arg LOCKED=false, or take {_variants(image)}")


def _variants(image: str) -> str:
    return " or ".join(variant for of, variant in LOCKS.values() if of == image and variant)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--ranges"]
    image, variant = words[0], next(iter(words[1:]), None)
    try:
        if "--ranges" in sys.argv:
            print(*requirements(tomllib.loads(Path("pyproject.toml").read_text()), image, variant), sep="\n")
        else:
            print(lock(image, variant))
    except LookupError as error:
        sys.exit(str(error))
