"""Reads the end of a failed process's output: its message, and whether a lost peer was the cause. The functions are pure.

The bundled trainer sends both in an `error` event. This module is for the user's own scripts and commands, and for aborts inside the
frameworks, which Python code cannot catch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from muster_contract.errors import BadConfiguration
from muster_trainer.supervisor.launchers import TRACEBACK, RootCause, take_apart

_LONGEST_PATTERN = 300
_MOST_PATTERNS = 50
LONGEST_LINE = 1000  # characters; longer lines are cut, so that hostile output takes little time
_RANK_MARK = re.compile(r"^\[(?:rank)?(\d+)\]:\s?")  # torch puts `[rank0]: ` before each line of a traceback
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Lost)(?::|$)")
_FRAME = re.compile(r'\s+File "(.*)", (line \d+)(?:, in (.+))?$')
_GLUED = re.compile(r"(?!(?:\[\w+\]:\s?)*Traceback|  traceback : )(.*?)((?:\[rank\d+\]:\s?)?Traceback \(most recent call last\):)")
"""A traceback that begins behind a progress bar or a prompt, in the same line. torchrun's report has such lines of its own."""
_BAR = re.compile(r".*\d%\|.*\||.*\d(?:it/s|s/it)\b")  # a progress bar of tqdm, which is no part of a message
_JAVA_FRAME = re.compile(r"\s+at [\w.$/<>@ -]+\(.*\)$|\s+\.\.\. \d+ more$|Driver stacktrace:$")
_JAVA_CAUSE = "Caused by: "
"""Java's stack traces, which an exception of Python may contain, have frames and causes."""
_RELAYED = re.compile(r"(?:\x1b\[\d+m)?\(\w+ pid=\d+")  # the mark of a line that a program relays from another process
_WORD = re.compile(r"\w")
_CONTINUED = 2  # further lines of a message that are included
_LONGEST_MESSAGE = 1500

_LIBRARY_PEER_LOST = r"^muster_contract\.errors\.PeerLost: "

NEVER = re.compile(r"(?!)")

Raised = list[str]
"""The lines of one exception from `Type: message` on, without its traceback."""


@dataclass
class Chain:
    """Exceptions that Python printed as raised while handling one another, oldest first.

    `rank` is the rank of the process, if its lines are marked with a rank. `at_import` is True if the last traceback has only frames at
    module level, which means that the process was still importing.
    """

    rank: int | None
    raised: list[Raised]
    at_import: bool = False
    frame: str = ""
    """The innermost frame of the last traceback, such as `train.py, line 12`."""


@dataclass(frozen=True)
class Reading:
    """The result of `read_tail`. `message` is empty if nothing was printed. `lines` are the lines of the program, without the report of its
    launcher. `root_cause` is from that report; None if there is no report."""

    message: str
    peer_lost: bool
    lines: tuple[str, ...] = ()
    chain: Chain | None = None
    root_cause: RootCause | None = None

    @property
    def killed_by(self) -> int | None:
        """The signal that ended a worker, according to the launcher, if no worker printed an error of its own."""
        if self.root_cause is None or self.root_cause.code >= 0 or (self.chain is not None and not self.peer_lost):
            return None
        return -self.root_cause.code


def peer_lost_pattern(patterns: Sequence[str]) -> re.Pattern[str]:
    """One pattern that matches any of a descriptor's patterns (`Framework.peer_lost`) and the exception of `muster_training`.

    Raises BadConfiguration if a pattern cannot be used.
    """
    field = "MUSTER_TRAINER.strategy.framework.peer_lost"
    if len(patterns) > _MOST_PATTERNS or any(len(pattern) > _LONGEST_PATTERN for pattern in patterns):
        raise BadConfiguration(f"{field}: write at most {_MOST_PATTERNS} patterns of at most {_LONGEST_PATTERN} characters")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadConfiguration(f"{field}: {pattern!r} is not a regular expression: {error}") from None
    return re.compile("|".join(f"(?:{pattern})" for pattern in (*patterns, _LIBRARY_PEER_LOST)))


def read_tail(lines: Sequence[str], peer_lost: re.Pattern[str]) -> Reading:
    """Reads the last lines of a process's output, oldest first. `peer_lost` matches a line that a process prints if it has lost a peer.

    Lines that a program relays from other processes count only if it has printed no others, because they may come late and in any order. An
    exception is judged together with those that it is chained to. If any exception is not about a lost peer, it is the cause, and
    those about lost peers are its consequences.
    """
    printed = [line for line in lines if not _RELAYED.match(line)] or lines
    own_lines = (line for line in (each[:LONGEST_LINE].rstrip() for each in printed) if not _JAVA_FRAME.match(line))
    output = take_apart([part for line in own_lines for part in _parts(line)])
    root_cause, own = output.root_cause, output.own
    chains = _exceptions(own) or _exceptions(output.recorded)
    causes = [chain for chain in chains if not _about_peers(chain, peer_lost)]
    if not chains:
        printed = [line.strip() for line in own if _WORD.search(line)]
        matching = [line for line in printed if peer_lost.search(line)]
        message = (matching or printed or [_message_without_output(root_cause)])[-1]
        return Reading(_cut(message), peer_lost=bool(matching), lines=own, root_cause=root_cause)
    chain = _cause(causes, root_cause) if causes else chains[-1]
    raised = chain.raised[-1] if causes else _about_peers(chain, peer_lost)[-1]
    message = _cut(" ".join(line.strip() for line in raised[: 1 + _CONTINUED]))
    return Reading(message, peer_lost=not causes, lines=own, chain=chain, root_cause=root_cause)


def _parts(line: str) -> tuple[str, ...]:
    """The line, or its two parts if a traceback begins within it."""
    glued = _GLUED.fullmatch(line)
    return glued.groups() if glued else (line,)


def _cause(causes: list[Chain], root_cause: RootCause | None) -> Chain:
    """The exception that ended the program. It is the last one, except under torchrun with several workers. There it is the exception of
    the worker that failed first, or the first exception if lines are not marked with ranks."""
    if root_cause is None:
        return causes[-1]
    its = [chain for chain in causes if chain.rank is not None and chain.rank == root_cause.rank]
    return its[-1] if its else causes[0]


def _message_without_output(root_cause: RootCause | None) -> str:
    if root_cause is None:
        return ""
    return "" if root_cause.code < 0 else f"ended with exit code {root_cause.code}, and the end of its output shows no error"


def _about_peers(chain: Chain, peer_lost: re.Pattern[str]) -> list[Raised]:
    return [raised for raised in chain.raised if any(peer_lost.search(line) for line in raised)]


def _exceptions(marked: Sequence[str]) -> list[Chain]:
    chains: list[Chain] = []
    in_traceback = in_message = chained = False
    frames: list[tuple[str, str | None]] = []
    for read, rank in map(_unmarked, marked):
        line = read.removeprefix(_JAVA_CAUSE)
        chained = chained or line != read
        if line.startswith(_CHAINED):
            chained, in_message = True, False
        elif line == TRACEBACK:
            in_traceback, in_message, frames = True, False, []
        elif in_traceback and (frame := _FRAME.match(line)):
            frames.append((f"{frame[1]}, {frame[2]}", frame[3]))
        elif line and not line.startswith(" ") and (in_traceback or _EXCEPTION.match(line)):
            in_traceback, in_message = False, True
            if not (chained and chains):
                chains.append(Chain(rank, []))
            chains[-1].raised.append([line])
            chains[-1].at_import = bool(frames) and {function for _, function in frames} == {"<module>"}
            chains[-1].frame = frames[-1][0] if frames else ""
            chained, frames = False, []
        elif in_message and line and not _BAR.match(line):
            chains[-1].raised[-1].append(line)
    return chains


def _unmarked(line: str) -> tuple[str, int | None]:
    match = _RANK_MARK.match(line)
    return (line[match.end() :], int(match[1])) if match else (line, None)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"
