"""The cause of a text in one short sentence, for `status.message`. Pure.

Each change of the message is a write of the status. So the sentence has no part that changes while the cause stays the same, such as names
of pods, or messages of the kubelet, which differ between a pull and its back-off.
"""

from __future__ import annotations

import re
from functools import lru_cache

from muster.explain.cause import Cause
from muster.explain.evidence import Evidence, Source
from muster.explain.explain import filled, matches_of

LONGEST = 1024  # characters of a message that the patterns search
_MOST = 2
"""Causes that are named. A message of the scheduler may have several."""
_REPEATING = ("Unschedulable", "PodsRefused")
"""Causes whose sentence only repeats the text."""
_GANG = "GangWaits"
_QUOTED_IMAGE = re.compile(r'image \\?"(?P<image>[^"\\\s]+)')


def brief(source: Source, reason: str, message: str) -> str:
    """The sentences of the causes in the text, such as `not enough nvidia.com/gpu is free`. Empty if there is none."""
    matches = _matches(source, reason[:LONGEST], message[:LONGEST])  # a message may have the name of an image, of 64 KiB
    return "; ".join([_sentence(cause, values) for cause, values in matches if cause.id not in _REPEATING][:_MOST])


def is_only_of_gang(reason: str, message: str) -> bool:
    """Whether the scheduler says no more about a pod than that its gang is not complete."""
    return [cause.id for cause, _ in _matches(Source.SCHEDULING, reason[:LONGEST], message[:LONGEST])] == [_GANG]


@lru_cache(maxsize=4096)  # the pods of a world wait for the same
def _matches(source: Source, reason: str, message: str) -> tuple[tuple[Cause, dict[str, str]], ...]:
    return tuple((cause, values) for _, cause, values in matches_of(Evidence(source, reason, message)))


def _sentence(cause: Cause, values: dict[str, str]) -> str:
    image = _QUOTED_IMAGE.search(values["message"])
    return filled(cause.sentence, {**values, "subject": "", "message": image["image"] if image else ""})
