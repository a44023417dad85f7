"""Runs a Python program with environment variables that are longer than Linux accepts: `python script_runner.py PROGRAM ARGUMENT...`.

The Python of the user's image runs this file alone, without Muster's packages. The supervisor has checked the packed variables.
"""

import os
import sys

LARGE_VARIABLES = "MUSTER_LARGE_VARIABLES"


def main() -> None:
    """Sets the variables for this process only, and runs the program as its main module."""
    folder = os.path.dirname(os.path.realpath(__file__))
    if sys.path and os.path.realpath(sys.path[0]) == folder:
        del sys.path[0]  # so that imports do not find modules of this folder
    import base64
    import json
    import runpy
    import zlib

    packed = os.environ.pop(LARGE_VARIABLES)
    for name, value in json.loads(zlib.decompress(base64.b64decode(packed)).decode())["variables"].items():
        os.environ[name] = value
        os.unsetenv(name)  # otherwise this process could start no other program
    del sys.argv[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
