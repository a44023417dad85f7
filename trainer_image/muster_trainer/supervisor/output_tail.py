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
_RANK_MARK = re.compile(r"^\[(?:rank)?\d+\]:\s?")  # torch puts `[rank0]: ` before each line of a traceback
_HEADER = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Lost)(?::|$)")
_LAUNCHER = re.compile(r"ChildFailedError")  # torchrun's summary of somebody else's failure
_EXIT_CODE = re.compile(r"\s+exitcode\s*: -(\d{1,2})\b")  # a line of torchrun's summary, for a worker ended by a signal
_WORD = re.compile(r"\w")
_CONTINUED = 2  # lines of a message that goes on after its first
_LONGEST_MESSAGE = 1500

Raised = list[str]
"""The lines of one exception from `Type: message` on, without its traceback."""
Chain = list[Raised]
"""Exceptions that Python printed as raised while handling one another, oldest first."""


@dataclass(frozen=True)
class Reading:
    """`message` is empty where nothing was printed; `killed_by` is the signal that torchrun says a worker died of."""

    message: str
    peer_lost: bool
    killed_by: int | None = None


def read_tail(lines: Sequence[str]) -> Reading:
    """Judge the last lines of a process's output, oldest first.

    Each exception is judged together with those it was chained to. A single one that has nothing to do with peers is
    the cause, and its peers' complaints are the echo.
    """
    chains = _exceptions([_RANK_MARK.sub("", line.rstrip()) for line in lines])
    causes = [chain for chain in chains if not _about_peers(chain)]
    killed_by = None if causes else _root_cause(lines)
    if not chains:
        said = [line.strip() for line in lines if _WORD.search(line)]
        telling = [line for line in said if _PEER_LOST.search(line)]
        return Reading(_cut((telling or said or [""])[-1]), peer_lost=bool(telling), killed_by=killed_by)
    told = causes[-1][-1] if causes else _about_peers(chains[-1])[-1]
    message = _cut(" ".join(line.strip() for line in told[: 1 + _CONTINUED]))
    return Reading(message, peer_lost=not causes, killed_by=killed_by)


def _root_cause(lines: Sequence[str]) -> int | None:
    """The signal in the last part of torchrun's summary, which is about the worker that failed first."""
    found = None
    for line in lines:
        if line.startswith("Root Cause"):
            found = None
        elif match := _EXIT_CODE.match(line):
            found = int(match[1])
    return found


def _about_peers(chain: Chain) -> list[Raised]:
    return [raised for raised in chain if _PEER_LOST.search("\n".join(raised))]


def _exceptions(lines: Sequence[str]) -> list[Chain]:
    chains: list[Chain] = []
    in_traceback = in_message = chained = False
    for line in lines:
        if line.startswith(_CHAINED):
            chained, in_message = True, False
        elif line == _HEADER:
            in_traceback, in_message = True, False
        elif line and not line.startswith(" ") and (in_traceback or _EXCEPTION.match(line)):
            in_traceback = False
            in_message = not _LAUNCHER.search(line)
            if in_message and chained and chains:
                chains[-1].append([line])
            elif in_message:
                chains.append([[line]])
            chained = False
        elif in_message and line:
            chains[-1][-1].append(line)
    return chains


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"
