"""Puts this folder on the path, for the worlds that property tests share are plain modules; and makes sure of what is tested."""

import os
import sys
from pathlib import Path

import muster

sys.path.insert(0, str(Path(__file__).parent))

_wanted = os.environ.get("MUSTER_PACKAGE_UNDER_TEST")
if _wanted and not str(muster.__file__).startswith(_wanted):
    raise RuntimeError(f"the tests import {muster.__file__}, not the copy in {_wanted}")
