"""What the end of a failed process's output tells: its message, and whether a lost peer was the cause. Pure.

The bundled trainer says both in an `error` event. This is for users' own scripts and commands, and for the aborts
inside the frameworks that no Python code can catch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PEER_LOST: tuple[tuple[str, str], ...] = (
    # (pattern, who says it and when)
    (r"Connection closed by peer", "gloo: a peer's socket was closed"),
    (r"(?<!\[Errno 104\] )(?<!\[Errno 54\] )Connection reset by peer", "gloo, c10d: a peer died; Python's own has Errno"),
    (r"gloo.*(Connection refused|Broken pipe|connect.* timed out|Timed out waiting)", "gloo: a peer is not there"),
    (r"Application timeout caused pair closure", "gloo: a peer stopped answering"),
    (r"ncclRemoteError", "NCCL: a peer exited or the network failed"),
    (r"remote process exited or there was a network error", "NCCL: the same, in words"),
    (r"NCCL communicator was aborted", "NCCL: the watchdog gave up waiting for a peer"),
    (r"Watchdog caught collective operation timeout", "NCCL: a peer stopped answering"),
    (r"Connection was likely closed\. Did the remote server shutdown or crash", "c10d: the store's host died"),
    (r"client socket has timed out after .* trying to connect", "c10d: the store's host is not there"),
    (r"RendezvousConnectionError", "torchrun: the rendezvous's host died"),
    (r"errors_impl\.(UnavailableError|AbortedError)", "TensorFlow: a task of the cluster died"),
    (r"errors_impl\.DeadlineExceededError", "TensorFlow: the leader stopped answering"),
    (r"\bUnavailableError\b", "TensorFlow: a task of the cluster died"),
    (r"Collective ops is aborted", "TensorFlow: a task of the ring died"),
    (r"stopped sending heartbeats", "TensorFlow: a task hangs or its node is gone"),
    (r"(?i:error reported (from|by) .*coordination service)", "TensorFlow: the coordination service lost a task"),
)

_PEER_LOST = re.compile("|".join(f"(?:{pattern})" for pattern, _ in PEER_LOST))
_RANK_MARK = re.compile(r"^\[(?:rank)?(\d+)\]:\s?")  # torch puts `[rank0]: ` before each line of a traceback
_HEADER = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Lost)(?::|$)")
_FRAME = re.compile(r'\s+File ".*", line \d+, in (.+)')
_LAUNCHER = re.compile(r"ChildFailedError")  # torchrun's summary of somebody else's failure
_LAUNCHER_LOG = re.compile(r"[IWE]\d{4} [\d:.]+ \d+ (?:\S*/)?torch/distributed/(?:run\.py|launcher/|elastic/)")
_BANNER = re.compile(r"={20,}$")
_EXIT_CODE = re.compile(r"\s+exitcode\s*: (-?[0-9]{1,3})\b")  # lines of torchrun's summary; a negative code is a signal
_RANK = re.compile(r"\s+rank\s*: ([0-9]{1,9})\b")
_WORD = re.compile(r"\w")
_CONTINUED = 2  # lines of a message that goes on after its first
_LONGEST_MESSAGE = 1500

Raised = list[str]
"""The lines of one exception from `Type: message` on, without its traceback."""


@dataclass
class Chain:
    """Exceptions that Python printed as raised while handling one another, oldest first. `rank` is that of the process, where its lines
    are marked with it. `at_import`: the last traceback has frames of module level only, so nothing but imports had happened there."""

    rank: int | None
    raised: list[Raised]
    at_import: bool = False


@dataclass(frozen=True)
class RootCause:
    """The worker that failed first, according to torchrun's summary. `code` is as subprocess gives it: negative for a signal."""

    rank: int | None
    code: int


@dataclass(frozen=True)
class Reading:
    """`message` is empty where nothing was printed. `lines` are those of the program itself, without torchrun's report about it.
    `root_cause` is what that report says; None where there is no such report."""

    message: str
    peer_lost: bool
    lines: tuple[str, ...] = ()
    chain: Chain | None = None
    root_cause: RootCause | None = None

    @property
    def killed_by(self) -> int | None:
        """The signal that torchrun says a worker died of, where no worker printed an error of its own."""
        if self.root_cause is None or self.root_cause.code >= 0 or (self.chain is not None and not self.peer_lost):
            return None
        return -self.root_cause.code


def read_tail(lines: Sequence[str]) -> Reading:
    """Judge the last lines of a process's output, oldest first.

    Each exception is judged together with those it was chained to. A single one that has nothing to do with peers is
    the cause, and its peers' complaints are the echo.
    """
    root_cause, own = _root_cause(lines), tuple(_without_launcher([line.rstrip() for line in lines]))
    chains = _exceptions(own)
    causes = [chain for chain in chains if not _about_peers(chain)]
    if not chains:
        said = [line.strip() for line in own if _WORD.search(line)]
        telling = [line for line in said if _PEER_LOST.search(line)]
        message = (telling or said or [_silent(root_cause)])[-1]
        return Reading(_cut(message), peer_lost=bool(telling), lines=own, root_cause=root_cause)
    chain = _cause(causes, root_cause) if causes else chains[-1]
    told = chain.raised[-1] if causes else _about_peers(chain)[-1]
    message = _cut(" ".join(line.strip() for line in told[: 1 + _CONTINUED]))
    return Reading(message, peer_lost=not causes, lines=own, chain=chain, root_cause=root_cause)


def _cause(causes: list[Chain], root_cause: RootCause | None) -> Chain:
    """The exception that ended the program: the last one it printed. Of several workers under torchrun it is that of the worker that
    failed first; where lines do not say whose they are, the first one."""
    if root_cause is None:
        return causes[-1]
    its = [chain for chain in causes if chain.rank is not None and chain.rank == root_cause.rank]
    return its[-1] if its else causes[0]


def _silent(root_cause: RootCause | None) -> str:
    if root_cause is None:
        return ""
    return f"ended by signal {-root_cause.code}" if root_cause.code < 0 else f"ended with exit code {root_cause.code} and printed no error"


def _root_cause(lines: Sequence[str]) -> RootCause | None:
    """What the last part of torchrun's summary says, which is about the worker that failed first."""
    begins = max((at for at, line in enumerate(lines) if line.startswith("Root Cause")), default=None)
    if begins is None:
        return None
    part = lines[begins:]
    codes = [int(match[1]) for line in part if (match := _EXIT_CODE.match(line)) and -64 <= int(match[1]) <= 255]
    ranks = [int(match[1]) for line in part if (match := _RANK.match(line))]
    return RootCause(ranks[0] if ranks else None, codes[0]) if codes else None


def _without_launcher(lines: Sequence[str]) -> list[str]:
    """The lines less torchrun's own: its log, its traceback and its summary between two banners."""
    kept: list[str] = []
    banners = 0
    for line in lines:
        if banners:
            banners -= bool(_BANNER.match(line))
        elif _LAUNCHER.search(line) and _EXCEPTION.match(line):
            banners = 2
            while kept and kept[-1] != _HEADER:  # its traceback
                kept.pop()
            kept = kept[:-1]
        elif not _LAUNCHER_LOG.match(line):
            kept.append(line)
    return kept


def _about_peers(chain: Chain) -> list[Raised]:
    return [raised for raised in chain.raised if _PEER_LOST.search("\n".join(raised))]


def _exceptions(marked: Sequence[str]) -> list[Chain]:
    chains: list[Chain] = []
    in_traceback = in_message = chained = False
    frames: list[str] = []
    for line, rank in map(_unmarked, marked):
        if line.startswith(_CHAINED):
            chained, in_message = True, False
        elif line == _HEADER:
            in_traceback, in_message, frames = True, False, []
        elif in_traceback and (frame := _FRAME.match(line)):
            frames.append(frame[1])
        elif line and not line.startswith(" ") and (in_traceback or _EXCEPTION.match(line)):
            in_traceback, in_message = False, True
            if not (chained and chains):
                chains.append(Chain(rank, []))
            chains[-1].raised.append([line])
            chains[-1].at_import = bool(frames) and set(frames) == {"<module>"}
            chained, frames = False, []
        elif in_message and line:
            chains[-1].raised[-1].append(line)
    return chains


def _unmarked(line: str) -> tuple[str, int | None]:
    match = _RANK_MARK.match(line)
    return (line[match.end() :], int(match[1])) if match else (line, None)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"
