"""Programs of Debian packages that are not installed. apt downloads the package, which is then unpacked into the cache. This needs no
root."""

import shutil
import tempfile
from pathlib import Path

from .errors import CommandFailedError, MissingError
from .places import Places
from .process import run
from .progress import step


def program(places: Places, name: str, *, package: str) -> Path:
    """The path of a program: the installed one, or else the one in the package.

    Raises:
        MissingError: the program is not installed, and there is no apt.
        CommandFailedError: the package could not be downloaded.
    """
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    tree = places.debian_programs / package
    with places.using_apt():
        if not tree.exists():
            _unpack(places, package, tree)
    return tree / "usr" / "bin" / name


def _unpack(places: Places, package: str, tree: Path) -> None:
    if shutil.which("apt-get") is None:
        raise MissingError(f"{package} is not installed, and this machine has no apt-get: install {package} by hand")
    places.debian_programs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=places.debian_programs) as name, step(f"downloading Debian's {package}"):
        folder = Path(name)
        command = ["apt-get", "download", package]
        try:
            run(command, 300, cwd=folder)
        except CommandFailedError:  # the lists of packages are missing or old
            run(["apt-get", "update"], 600)
            run(command, 300, cwd=folder)
        [archive] = folder.glob("*.deb")
        run(["dpkg-deb", "--extract", archive, folder / "tree"], 120)
        (folder / "tree").replace(tree)
