"""Lets the tests of this folder import what they share (`worlds`, `proofs`)."""

import sys
from pathlib import Path

# Both frameworks get into this process, and torch's compiler, with an LLVM of its own, must be the first: else the process aborts.
import torch._dynamo  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))
