"""Random choices that a failed test can make again."""

from __future__ import annotations

import os
import random


def seeded_random() -> random.Random:
    """A generator with the seed of MUSTER_TEST_SEED, or with a new one. pytest shows the seed of a failed test."""
    seed = os.environ.get("MUSTER_TEST_SEED") or str(random.randrange(1 << 32))
    print(f"repeat the choices of this test with MUSTER_TEST_SEED={seed}")
    return random.Random(seed)
