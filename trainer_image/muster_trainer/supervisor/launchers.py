"""Separates the output of torchrun and `accelerate launch` into the lines of the program and the report of the launcher. The functions are
pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

TRACEBACK = "Traceback (most recent call last):"
_TORCHRUN_END = re.compile(r"(?:[A-Za-z_]\w*\.)*ChildFailedError(?::|$)")
_TORCHRUN_LOG = re.compile(
    r"[IWE]\d{4} [\d:.]+ \d+ (?:\S*/)?torch/distributed/(?:run\.py|launcher/|elastic/)"
    r"|Setting OMP_NUM_THREADS environment variable for each process"  # has no log prefix if torchrun runs as a module
)
_BANNER = re.compile(r"={20,}$")
_EXIT_CODE = re.compile(r"\s+exitcode\s*: (-?[0-9]{1,3})\b")  # a line of torchrun's summary; a negative code is a signal
_RANK = re.compile(r"\s+rank\s*: ([0-9]{1,9})\b")
_ROOT_CAUSE = "Root Cause"
_RECORDED = f"  traceback : {TRACEBACK}"  # of a program that is decorated with `record`; two spaces precede the lines after it
_TEE_MARK = re.compile(r"\[(?!rank[0-9])[A-Za-z]\w{0,62}[0-9]\]:")  # `torchrun --tee` puts `[default0]:` before each line of a worker
_ACCELERATE_FILE = "accelerate/commands/launch.py"
_ACCELERATE_END = re.compile(
    r"subprocess\.CalledProcessError: Command .* (?:returned non-zero exit status ([0-9]{1,3})|died with <Signals\.\w+: ([0-9]{1,2})>)\.$"
)


@dataclass(frozen=True)
class RootCause:
    """The worker that failed first, according to its launcher. `rank` is None if the launcher has only one worker. `code` is the exit code,
    or the negative number of the signal, as in subprocess."""

    rank: int | None
    code: int


@dataclass(frozen=True)
class LauncherOutput:
    """`own` are the lines of the program. `root_cause` is None if there is no report of a launcher. `recorded` is the traceback in that
    report. If torchrun writes the output of its workers to files, there is no other traceback."""

    own: tuple[str, ...]
    root_cause: RootCause | None = None
    recorded: tuple[str, ...] = ()


def take_apart(lines: Sequence[str]) -> LauncherOutput:
    """Separates the last lines that a process printed, oldest first."""
    if accelerate := _of_accelerate(lines):
        return accelerate
    begins = max((at for at, line in enumerate(lines) if line.startswith(_ROOT_CAUSE)), default=len(lines))
    part = lines[begins:]
    root_cause = _root_cause(part)
    own = _without_torchrun(lines)
    if root_cause is None:
        return LauncherOutput(tuple(own))
    if not any(map(_TORCHRUN_END.match, lines)):  # the beginning of a long report is not among the lines
        own = []
    return LauncherOutput(tuple(_TEE_MARK.sub("", line, count=1) for line in own), root_cause, tuple(_recorded(part)))


def _of_accelerate(lines: Sequence[str]) -> LauncherOutput | None:
    """Separates the output of `accelerate launch` with one process, which ends with its own traceback below that of the program."""
    match = _ACCELERATE_END.match(lines[-1]) if lines else None
    begins = max((at for at, line in enumerate(lines) if line == TRACEBACK), default=0)
    if match is None or not any(_ACCELERATE_FILE in line for line in lines[begins:]):
        return None
    code = int(match[1]) if match[1] else -int(match[2])
    return LauncherOutput(tuple(lines[:begins]), RootCause(None, code))


def _root_cause(part: Sequence[str]) -> RootCause | None:
    """The root cause in the last part of torchrun's summary, which is about the worker that failed first."""
    codes = [int(match[1]) for line in part if (match := _EXIT_CODE.match(line)) and -64 <= int(match[1]) <= 255]
    ranks = [int(match[1]) for line in part if (match := _RANK.match(line))]
    return RootCause(ranks[0] if ranks else None, codes[0]) if codes else None


def _recorded(part: Sequence[str]) -> list[str]:
    begins = next((at for at, line in enumerate(part) if line == _RECORDED), None)
    if begins is None:
        return []
    return [TRACEBACK, *(line[2:] for line in takewhile(lambda line: not _BANNER.match(line), part[begins + 1 :]))]


def _without_torchrun(lines: Sequence[str]) -> list[str]:
    """The lines without those of torchrun: its log, its traceback, and its summary between two banners."""
    rest: list[str] = []
    banners = 0
    for line in lines:
        if banners:
            banners -= bool(_BANNER.match(line))
        elif _TORCHRUN_END.match(line):
            banners = 2
            while rest and rest[-1] != TRACEBACK:
                rest.pop()
            rest = rest[:-1]
        elif not _TORCHRUN_LOG.match(line):
            rest.append(line)
    return rest
