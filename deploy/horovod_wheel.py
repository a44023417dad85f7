"""Builds the wheel of Horovod for the PyTorch of this Python: `python horovod_wheel.py FOLDER`, for the Dockerfile and the tests.

The package index has no wheel, and the source of 0.28.1, the newest release, is built as C++14, while headers of PyTorch need C++20. So two
lines of its build change. The build takes about six minutes of a processor.

This Python needs pip, torch and setuptools. The machine needs a C++ compiler, make and CMake 3.13 or newer.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.28.1"
REQUIREMENT = f"horovod=={VERSION} --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
STANDARD = 20
STANDARDS = {"CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14)", "horovod/torch/CMakeLists.txt": "    set(CMAKE_CXX_STANDARD 14)"}
"""The file and the line of each standard."""
PROGRAMS = {"c++": "g++", "make": "make", "cmake": "cmake"}
"""The programs that the build needs, and the packages of Debian that have them."""
SETTINGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # the bundled gloo asks for less, which CMake 4 refuses
    # Older compilers include these headers with others, and the sources rely on that. GCC 14 refuses the span of the bundled flatbuffers.
    "CXXFLAGS": "-include cstdint -include string -DFLATBUFFERS_USE_STD_SPAN",
}


def build(folder: Path) -> Path:
    """Builds the wheel, and returns its path in the folder. Exits with a sentence if something is missing."""
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        sys.exit(f"the build of Horovod needs {', '.join(missing)}: on Debian, apt-get install {' '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="muster-horovod-") as scratch:
        source = _source(Path(scratch))
        for name, line in STANDARDS.items():
            _change(source / name, line, line.replace("14", str(STANDARD)))
        # All processors, unless the caller says otherwise. Horovod's own default is eight jobs, which need 8 GB of memory.
        env = {"MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}", **os.environ, **SETTINGS}
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source), env=env)
    return next(folder.glob(f"horovod-{VERSION}-*.whl"))


def _source(scratch: Path) -> Path:
    """Downloads the source from the package index, and checks its hash."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(REQUIREMENT + "\n")
    options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes", "--dest", str(scratch)]
    _pip("download", *options, "--requirement", str(requirements))
    with tarfile.open(scratch / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
    return scratch / f"horovod-{VERSION}"


def _change(file: Path, line: str, other: str) -> None:
    lines = file.read_text().splitlines()
    if lines.count(line) != 1:
        sys.exit(f"{file.name} of Horovod {VERSION} does not have the line {line!r} once; look at its build")
    file.write_text("\n".join(other if each == line else each for each in lines) + "\n")


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], env=env, stdout=sys.stderr, check=False)
    if done.returncode:
        sys.exit(f"pip {arguments[0]} of Horovod {VERSION} failed: its output above says why")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(build(Path(sys.argv[1])))
