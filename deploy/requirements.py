"""Prints the requirements of an image, for the Dockerfile, or of the kubectl plug-in: a lock of deploy/locks, or those of pyproject.toml.

requirements.py operator [--ranges]
requirements.py ui [--ranges]
requirements.py client [--ranges]                           for the commands on a cluster, without an image
requirements.py trainer FRAMEWORK [DISTRIBUTION] [--ranges]
requirements.py build [--ranges]                            packages that build Muster's own package

FRAMEWORK is an extra of pyproject.toml whose first requirement is the framework: pytorch, tensorflow, jax, horovod, mpi, ray or spark.
DISTRIBUTION replaces that requirement, such as tensorflow-cpu; `base` means that the base image has torch, TensorFlow or JAX. With
--ranges it can be any distribution.

A lock names every package with its version and hashes. `--ranges` prints pyproject.toml's requirements instead.
"""

import re
import sys
import tomllib
from pathlib import Path

TELEMETRY = "telemetry"
"""The extra of the operator's image, for traces."""
STORAGE = ("s3", "parquet", "inputs")
"""The extras of trainer images: for checkpoints and data in object stores, for data in Parquet and Arrow files, and for inputs of a hub."""
SUPERVISOR = ("psutil",)
"""The requirements of a supervisor. Trainer images have no other packages of the operator, so that these cannot conflict with users'
versions."""
BASE = "base"
BASES_HAVE = frozenset({"torch", "tensorflow", "jax"})
"""What `base` leaves out. mpi, ray and spark need torch beside their first requirement."""
LOCKS = {
    "build": ("build",),
    "operator": ("operator",),
    "ui": ("ui",),
    "client": ("client",),
    "pytorch": ("trainer", "pytorch", "torch"),
    "pytorch-base": ("trainer", "pytorch", BASE),
    "tensorflow": ("trainer", "tensorflow", "tensorflow[and-cuda]"),
    "tensorflow-cpu": ("trainer", "tensorflow", "tensorflow-cpu"),
    "jax": ("trainer", "jax", "jax[cuda12]"),
    "jax-cpu": ("trainer", "jax", "jax"),
    "ray": ("trainer", "ray", "ray"),
    "horovod": ("trainer", "horovod", "torch"),
    "mpi": ("trainer", "mpi", "mpi4py"),
    "spark": ("trainer", "spark", "pyspark"),
}
"""The name of each lock, and the arguments that print it. The first lock of a framework is for builds that name no distribution."""


def requirements(pyproject: dict, image: str, framework: str = "", distribution: str = "") -> list[str]:
    """The requirements of an image, in pip's format. Raises LookupError if there is no such framework."""
    if image == "build":
        return list(pyproject["build-system"]["requires"])
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    if image == "operator":
        return [*project["dependencies"], *extras["operator"], *extras[TELEMETRY]]
    if image == "client":
        return [*project["dependencies"], *extras["cluster"]]
    if image == "ui":
        return [*project["dependencies"], *extras["cluster"], *extras["history"]]
    supervisor = [each for each in project["dependencies"] if _name(each) in SUPERVISOR]
    first, *others = extras[_checked(framework)]
    if distribution == BASE:
        frameworks = [each for each in (first, *others) if _name(each) not in BASES_HAVE]
    else:
        frameworks = [first.replace(_name(first), distribution or _locks_of(framework)[0][1], 1), *others]
    return [*supervisor, *frameworks, *(each for extra in STORAGE for each in extras[extra])]


def lock(image: str, framework: str = "", distribution: str = "") -> str:
    """The lock, with pip's option that requires a hash for each package. Raises LookupError if there is none."""
    name = image
    if image == "trainer":
        locks = _locks_of(_checked(framework))
        named = [name for name, of in locks if of == (distribution or locks[0][1])]
        if distribution == BASE:
            named.append(locks[0][0])  # has what `base` leaves out, too, and install_over_base.py takes only what is missing
        if not named:
            available = " or ".join(of for _, of in locks)
            raise LookupError(f"deploy/locks has no lock for {distribution}: build with --build-arg LOCKED=false, or take {available}")
        name = named[0]
    return f"--require-hashes\n{(Path('deploy/locks') / f'{name}.txt').read_text()}"


def _checked(framework: str) -> str:
    if not _locks_of(framework):
        frameworks = dict.fromkeys(of[1] for of in LOCKS.values() if of[0] == "trainer")
        raise LookupError(f"FRAMEWORK={framework}: build with --build-arg FRAMEWORK= and one of {', '.join(frameworks)}")
    return framework


def _locks_of(framework: str) -> list[tuple[str, str]]:
    """The name and the distribution of each lock of a framework."""
    return [(name, of[2]) for name, of in LOCKS.items() if of[:2] == ("trainer", framework)]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--ranges"]
    try:
        if "--ranges" in sys.argv:
            print(*requirements(tomllib.loads(Path("pyproject.toml").read_text()), *words), sep="\n")
        else:
            print(lock(*words))
    except LookupError as error:
        sys.exit(str(error))
