"""Builds Muster's images from the Dockerfile that users build. A tag is a hash of all that goes into its image."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..harness.engine import Engine
from ..harness.errors import HarnessError
from ..harness.places import Places
from ..harness.process import run
from ..harness.progress import step
from . import base

ROOT = Path(__file__).resolve().parents[3]
EVERY_IMAGE = ("Dockerfile", ".dockerignore", "pyproject.toml", "deploy/requirements.py", "deploy/install_over_base.py", "deploy/locks")
SOURCES = {
    "operator": (*EVERY_IMAGE, "README.md", "LICENSE", "operator/muster", "trainer_image/muster_trainer"),
    "trainer-pytorch": (*EVERY_IMAGE, "trainer_image/muster_trainer"),
    "trainer-tensorflow": (*EVERY_IMAGE, "trainer_image/muster_trainer"),
}
"""Target of the Dockerfile to the files and folders that its image is made from."""
TARGETS = tuple(SOURCES)
BUILD_TIMEOUT = 3600.0


def ensure(places: Places, engine: Engine, targets: Iterable[str] = TARGETS) -> dict[str, str]:
    """Target to image name. What the engine has already is not built again; older images of the same target go.

    Raises:
        HarnessError: an unknown target, or a build failed.
    """
    wanted = list(targets)
    unknown = sorted(set(wanted) - set(TARGETS))
    if unknown:
        raise HarnessError(f"no image is called {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    bases = base.ensure(places, engine)
    # The same for every target: an engine without BuildKit passes through the others' stages, and then finds them in its cache.
    arguments = {
        "BASE_IMAGE": bases.python,
        "PYTORCH_BASE_IMAGE": bases.torch,
        "TORCH": "base",
        "TENSORFLOW": "tensorflow-cpu",
    }
    return {target: _built(places, engine, target, arguments=arguments) for target in TARGETS if target in wanted}


def _built(places: Places, engine: Engine, target: str, *, arguments: dict[str, str]) -> str:
    repository = f"muster-{target}"
    image = f"{repository}:{_digest(target, arguments)}"
    if engine.has_image(image):
        return image
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    with step(f"building {image}", "a few seconds, or minutes when nothing is cached"):
        command = ["nice", "docker", "build", "--target", target, *options, "--tag", image, ROOT]
        run(command, BUILD_TIMEOUT, env=engine.environment, log=places.logs / f"{repository}.log")
    for old in engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", repository).split():
        if old != image:
            engine.docker("image", "rm", "--force", old)  # a build that was ended may still hold it
    return image


def _digest(target: str, arguments: dict[str, str]) -> str:
    digest = hashlib.sha256(repr((target, sorted(arguments.items()))).encode())
    for file in _files(target):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _files(target: str) -> Iterator[Path]:
    for name in SOURCES[target]:
        path = ROOT / name
        yield from (
            sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts) if path.is_dir() else [path]
        )
