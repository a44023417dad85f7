"""The base images of the tests.

If the engine can pull images, they are the default of the Dockerfile, and Debian with its CPU build of torch. Otherwise debootstrap makes a
Debian image. That image also gets the certificate authorities of this machine, because pip then usually needs a proxy with such a
certificate.
"""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import engine as engines
from ..engine import Engine
from ..errors import CommandFailedError
from ..machine import debian_mirror
from ..places import Places
from ..process import run
from ..progress import say, step

SUITE = "trixie"
PULLED_PYTHON = "python:3.13-slim"
PULLED_DEBIAN = f"debian:{SUITE}-slim"
FOLDER = Path(__file__).parent / "base"
AUTHORITIES = Path("/usr/local/share/ca-certificates")
PULL_TIMEOUT = 300.0
BUILD_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Bases:
    """Names of images in the engine: one with Python, and one with Python and torch."""

    python: str
    torch: str


def ensure(places: Places, engine: Engine) -> Bases:
    """The base images. Builds those that the engine does not have.

    Raises:
        ClusterError: the images can be neither pulled nor built here.
    """
    if _pulled(engine, PULLED_PYTHON) and _pulled(engine, PULLED_DEBIAN):
        return Bases(python=PULLED_PYTHON, torch=_built(places, engine, "torch", debian=PULLED_DEBIAN))
    debian = _bootstrapped(places, engine)
    return Bases(python=_built(places, engine, "python", debian=debian), torch=_built(places, engine, "torch", debian=debian))


def _pulled(engine: Engine, image: str) -> bool:
    if engine.has_image(image):
        return True
    if engine.own:  # such an engine runs only on machines that cannot pull images
        return False
    try:
        with step(f"pulling {image}"):
            engine.docker("pull", "--quiet", image, timeout=PULL_TIMEOUT)
    except CommandFailedError as error:
        say(f"{image} cannot be pulled here: {error.output.splitlines()[-1] if error.output else error}")
        return False
    return True


def _built(places: Places, engine: Engine, target: str, *, debian: str) -> str:
    digest = hashlib.sha256(debian.encode())
    for file in sorted(FOLDER.iterdir()):
        digest.update(file.read_bytes())
    image = f"muster-test-base:{target}-{digest.hexdigest()[:12]}"
    if not engine.has_image(image):
        with step(f"building a base image with {target}", "about 2 min"):
            command: list[str | Path] = ["docker", "build", "--target", target, "--build-arg", f"DEBIAN={debian}", "--tag", image, FOLDER]
            run(command, BUILD_TIMEOUT, env=engine.environment, log=places.logs / f"base-{target}.log")
    return image


def _bootstrapped(places: Places, engine: Engine) -> str:
    authorities = sorted(AUTHORITIES.glob("*.crt"))
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for file in authorities:
        digest.update(file.read_bytes())
    image = f"muster-test-debian:{SUITE}-{digest.hexdigest()[:12]}"
    if engine.has_image(image):
        return image
    engines.install({"debootstrap": "debootstrap"})
    places.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="images-debian-", dir=places.cache) as name, step(f"Debian {SUITE} for images", "about 1 min"):
        tree = Path(name)
        tree.chmod(0o755)
        command: list[str | Path] = ["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, tree, debian_mirror()]
        run(command, BUILD_TIMEOUT, log=places.logs / "images-debootstrap.log")
        for file in authorities:
            shutil.copy(file, tree / AUTHORITIES.relative_to("/"))
        run(["chroot", tree, "update-ca-certificates"], 120)
        spare = [
            f"--exclude=./{folder}/*"
            for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
        ]
        script = 'tree=$1 image=$2; shift 2; tar -C "$tree" --numeric-owner "$@" -c . | docker import -c \'CMD ["bash"]\' - "$image"'
        run(["bash", "-euo", "pipefail", "-c", script, "--", tree, image, *spare], 300, env=engine.environment)
    return image
