"""Puts this folder on the path: `control_worlds.py` is shared by the tests beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
