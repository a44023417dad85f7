"""Each Python and PyTorch reads the checkpoints of each other: `make checkpoints-across`.

It makes an environment for each pair of versions, by default in the user's cache, where uv finds such a Python or can fetch it.
Each of them writes a checkpoint with two ranks, and each reads all of them, with one rank and with two.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAIRS = (("3.11", "2.6.0"), ("3.13", "2.15.0"))
WORLD = 2
DEADLINE = 300.0


def environment(folder: Path, python: str, torch: str) -> Path:
    """The interpreter of a virtual environment with these versions; made where it is not there."""
    place = folder / f"python{python}-torch{torch}"
    interpreter = place / "bin" / "python"
    if not (place / ".ready").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", python, str(place)], check=True)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(interpreter), f"torch=={torch}", "numpy>=1.26,<3"], check=True)
        (place / ".ready").touch()
    return interpreter


def side(interpreter: Path, what: str, directory: Path, *, world: int) -> None:
    """All ranks of one side. Raises SystemExit with the output of the one that failed."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'contract'}:{ROOT / 'trainer_image'}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(interpreter), str(Path(__file__).with_name("one_side.py")), what, str(directory), f"{folder}/meeting"]
        ranks = [
            subprocess.Popen([*command, str(rank), str(world)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for rank in range(world)
        ]
        try:
            for rank in ranks:
                output, _ = rank.communicate(timeout=DEADLINE)
                if rank.returncode:
                    raise SystemExit(f"{what} of {directory.name} by {interpreter}: FAILED\n{output}")
                print(f"  {output.strip().splitlines()[-1]}", flush=True)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "across"
    parser.add_argument("--environments", type=Path, default=default, help="where the environments are (10 GB)")
    parser.add_argument("--keep", type=Path, help="write the checkpoints here, and leave them")
    arguments = parser.parse_args()
    interpreters = {f"python-{python}-torch-{torch}": environment(arguments.environments, python, torch) for python, torch in PAIRS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        for writer, interpreter in interpreters.items():
            print(f"{writer} writes")
            side(interpreter, "write", folder / writer, world=WORLD)
        for writer in interpreters:
            for reader, interpreter in interpreters.items():
                for world in (1, WORLD):
                    print(f"{reader} reads what {writer} wrote")
                    side(interpreter, "read", folder / writer, world=world)
    print(f"{len(interpreters) ** 2} pairs of versions: every bit is as it was written")


if __name__ == "__main__":
    main()
