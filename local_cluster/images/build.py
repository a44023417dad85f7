"""Builds Muster's images from the Dockerfile of users. A tag is a hash of all files that the image is built from."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..engine import Engine
from ..errors import ClusterError
from ..places import Places
from ..process import run
from ..progress import step
from . import base

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ("deploy/horovod_wheel.py", "deploy/install_over_base.py", "deploy/locks", "deploy/requirements.py")
EVERY_IMAGE = ("Dockerfile", ".dockerignore", "pyproject.toml", *DEPLOY)
TRAINER = (
    "contract/muster_contract",
    "engines/muster_horovod",
    "engines/muster_mpi",
    "engines/muster_ray",
    "engines/muster_spark",
    "trainer_image/muster_trainer",
    "trainer_image/muster_training",
)


@dataclass(frozen=True)
class Image:
    """How an image is built: a target of the Dockerfile, its own build arguments, and the files and folders that it is made from."""

    target: str
    sources: tuple[str, ...]
    framework: str | None = None
    distribution: str | None = None

    def arguments(self, bases: base.Bases) -> dict[str, str]:
        """The build arguments."""
        if self.framework is None or self.distribution is None:
            return {"BASE_IMAGE": bases.python}
        trainer_base = bases.torch if self.distribution == "base" else bases.python
        trainer = {"TRAINER_BASE_IMAGE": trainer_base, "FRAMEWORK": self.framework, "DISTRIBUTION": self.distribution}
        return {"BASE_IMAGE": bases.python, **trainer}


IMAGES = {
    "operator": Image("operator", (*EVERY_IMAGE, "README.md", "LICENSE", *TRAINER, "operator/muster")),
    "trainer-pytorch": Image("trainer", (*EVERY_IMAGE, *TRAINER), "pytorch", "base"),
    "trainer-tensorflow": Image("trainer", (*EVERY_IMAGE, *TRAINER), "tensorflow", "tensorflow-cpu"),
    "trainer-jax": Image("trainer", (*EVERY_IMAGE, *TRAINER), "jax", "jax"),
    "trainer-mpi": Image("trainer", (*EVERY_IMAGE, *TRAINER), "mpi", "base"),
    "trainer-ray": Image("trainer", (*EVERY_IMAGE, *TRAINER), "ray", "base"),
    "trainer-horovod": Image("trainer", (*EVERY_IMAGE, *TRAINER), "horovod", "base"),
    "trainer-spark": Image("trainer", (*EVERY_IMAGE, *TRAINER), "spark", "base"),
}
"""The images by name. The repository of an image is `muster-NAME`."""
ENGINES = ("trainer-mpi", "trainer-ray", "trainer-horovod", "trainer-spark")
"""The images that the cluster does without. `make images` builds them too."""
CORE = tuple(name for name in IMAGES if name not in ENGINES)
BUILD_TIMEOUT = 3600.0


def ensure(places: Places, engine: Engine, requested: Iterable[str] = CORE) -> dict[str, str]:
    """The name with its tag for each requested image. Builds images that the engine lacks, and removes older ones.

    Raises:
        ClusterError: a name is unknown, or a build failed.
    """
    requested = tuple(requested)
    unknown = sorted(set(requested) - set(IMAGES))
    if unknown:
        raise ClusterError(f"no image is called {', '.join(unknown)}; there are {', '.join(IMAGES)}")
    bases = base.ensure(places, engine)
    return {name: _built(places, engine, name, arguments=IMAGES[name].arguments(bases)) for name in IMAGES if name in requested}


def _built(places: Places, engine: Engine, name: str, *, arguments: dict[str, str]) -> str:
    repository = f"muster-{name}"
    image = f"{repository}:{_digest(IMAGES[name], arguments)}"
    if engine.has_image(image):
        return image
    options = [word for argument, value in arguments.items() for word in ("--build-arg", f"{argument}={value}")]
    with step(f"building {image}", "a few seconds, or minutes when nothing is cached"):
        command: list[str | Path] = ["nice", "docker", "build", "--target", IMAGES[name].target, *options, "--tag", image, ROOT]
        run(command, BUILD_TIMEOUT, env=engine.environment, log=places.logs / f"{repository}.log")
    for old in engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", repository).split():
        if old != image:
            engine.docker("image", "rm", "--force", old)  # an interrupted build may still use it
    return image


def _digest(image: Image, arguments: dict[str, str]) -> str:
    digest = hashlib.sha256(repr((image.target, sorted(arguments.items()))).encode())
    for file in _files(image):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _files(image: Image) -> Iterator[Path]:
    for name in image.sources:
        path = ROOT / name
        yield from (
            sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts) if path.is_dir() else [path]
        )
