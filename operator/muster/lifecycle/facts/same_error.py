"""Whether two messages are about the same error, although the attempts differ. Pure.

Each attempt has other processes, ports, temporary names and times, and another rank may raise first. These are replaced by a word. Other
numbers stay, because they may name what is wrong, such as a sample or a shape.
"""

from __future__ import annotations

import re

_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_CLOCK = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?"
_PROCESS = re.compile(r"\b(pids?|pid\(s\)|tid|thread|process(?: id)?)([ :=(]+)\d+(?:, ?\d+)*\b", re.IGNORECASE)
_PARTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^rank \d+: "), ""),
    (re.compile(r"\[rank\d+\]:?|\b(?:on|by|from|of) rank \d+\b", re.IGNORECASE), "RANK"),
    (re.compile(r"\[[0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*\](?::\d{1,5}\b)?", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "NAME"),
    (re.compile(r"\b[IWEF]\d{4} " + _CLOCK + r"\s+\d+ "), "TIME "),  # the beginning of a line of glog, with the thread
    (re.compile(r"\b\d{4}[-/]\d{2}[-/]\d{2}(?:[T ]" + _CLOCK + r")?(?: ?UTC|Z|[+-]\d{2}:?\d{2})?"), "TIME"),
    (re.compile(r"\b" + _CLOCK + r"\b"), "TIME"),
    (re.compile(r"\b1\d{9}\.\d+\b"), "TIME"),  # Unix seconds
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:[mun]?s|secs?|(?:milli|micro)?seconds?|minutes?)\b"), "TIME"),
    (re.compile(r"\[?\b" + _IPV4 + r"\b\]?(?:(?::|, ?)\d{1,5}\b)?"), "ADDRESS"),
    (re.compile(r"\[?\blocalhost\b\]?(?:(?::|, ?)\d{1,5}\b)?|\b[\w-]+(?:\.[\w-]+)*\.svc(?:\.[\w-]+)*(?::\d{1,5}\b)?"), "ADDRESS"),
    (re.compile(r"\b(ports?)\b([ :=]+)\d{1,5}\b", re.IGNORECASE), r"\1\2PORT"),
    (_PROCESS, r"\1\2PID"),
    (re.compile(r"\b(?:(?:tmp|pymp-|muster-save-)[a-z0-9_]{8}|tmp\.\w{6,}|psm_[0-9a-f]{8}|torch_\d+_\d+(?:_\d+)?)\b"), "NAME"),
    (re.compile(r"((?:/var)?/tmp/|/dev/shm/)([\w.-]*?)(?=[a-z_]*\d+[a-z_])[a-z0-9_]{8}\b"), r"\1\2NAME"),
    (re.compile(r"\b(step-\d{8,15})-[\w-]+"), r"\1-NAME"),  # the folder of a checkpoint; the rest of its name has the attempt
)


AHEAD_STEPS = 5
"""How many steps apart the training may notice the same end of a helper. A data loader works some samples ahead."""


def same_step(one: int | None, other: int | None, message: str) -> bool:
    """Whether two attempts failed at the same step with this message. The error of a helper, which has a process id, may come some steps
    earlier or later."""
    if one is None or other is None or not _PROCESS.search(message):
        return one == other
    return abs(one - other) <= AHEAD_STEPS


def same_error(one: str, other: str) -> bool:
    """Whether both messages are about the same error."""
    return _normalised(one) == _normalised(other)


def _normalised(message: str) -> str:
    for pattern, word in _PARTS:
        message = pattern.sub(word, message)
    return message
