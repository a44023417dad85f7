"""The cause of a text in one short sentence, for `status.message`. Pure.

Each change of the message is a write of the status. So the sentence has no part that changes while the cause stays the same, such as names
of pods, or messages of the kubelet, which differ between a pull and its back-off.
"""

from __future__ import annotations

import re
from functools import lru_cache

from muster.explain.causes import CAUSES
from muster.explain.evidence import Evidence, Source
from muster.explain.explain import filled

LONGEST = 1024  # characters of a message that the patterns search
_REPEATING = ("Unschedulable", "PodsRefused")
"""Causes whose sentence only repeats the text."""
_QUOTED_IMAGE = re.compile(r'image \\?"(?P<image>[^"\\\s]+)')


def brief(source: Source, reason: str, message: str) -> str:
    """The sentence of the first cause that matches the text, such as `not enough nvidia.com/gpu is free`. Empty if there is none."""
    return _brief(source, reason[:LONGEST], message[:LONGEST])  # a message may have the name of an image, of 64 KiB


@lru_cache(maxsize=4096)  # the pods of a world wait for the same
def _brief(source: Source, reason: str, message: str) -> str:
    evidence = Evidence(source, reason, message)
    for cause in CAUSES:
        values = cause.values(evidence)
        if values is None:
            continue
        if cause.id in _REPEATING:
            return ""
        image = _QUOTED_IMAGE.search(evidence.message)
        sentence = filled(cause.sentence, {**values, "subject": "", "message": image["image"] if image else ""})
        return " ".join(sentence.split())
    return ""
