"""Regular expressions that meet text of others take time in proportion to the text. The time is that of the processor."""

from __future__ import annotations

import re
import time

import pytest

from muster.client import redaction
from muster.explain.causes import CAUSES
from tests.support.hostile_texts import hostile_texts
from tests.support.seeds import seeded_random

SIZE = 32_768
SECONDS = 1.0
"""A linear pattern takes a hundredth of this, and a quadratic one more than this."""

PATTERNS = {
    **{f"cause {cause.id}": re.compile(cause.pattern, re.IGNORECASE | re.DOTALL) for cause in CAUSES},
    **{f"redaction {index}": pattern for index, pattern in enumerate(redaction.PATTERNS)},
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_takes_linear_time(pattern: re.Pattern[str]) -> None:
    for text in hostile_texts(pattern, SIZE // 16, seeded_random()):
        begun = time.process_time()
        pattern.search(text)
        if time.process_time() - begun < SECONDS / 256:  # a quadratic pattern would take SECONDS for the whole
            continue
        begun = time.process_time()
        pattern.search((text * 16)[:SIZE])
        assert time.process_time() - begun < SECONDS, text[:80]
