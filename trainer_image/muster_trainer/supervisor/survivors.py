"""The training processes that wait for the world of the next attempt (`muster_trainer.training.survivor`), between two attempts."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from muster_contract.codes import ExitCode
from muster_contract.environment import NAMES, RESCUE_SECONDS
from muster_contract.events import ErrorEvent
from muster_contract.reports import Reply
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.outcome import End
from muster_trainer.supervisor.process_table import descendants
from muster_trainer.supervisor.processes import Process, reap

LEAVING_SECONDS = 2 * RESCUE_SECONDS
"""The time in which a process without a next world saves its state and ends."""
KILLED_SECONDS = 5.0
"""The longest wait after SIGKILL for a process that is stuck in the kernel."""
_TURN = 0.02
MOVING = frozenset(
    {
        *(NAMES["attempt"], NAMES["world_address"], "TORCHELASTIC_RESTART_COUNT"),
        *("MASTER_ADDR", "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    }
)
"""Variables that may differ between the worlds of a process: which attempt it is, and where its ranks meet."""


class Survivors:
    """The processes of the attempt that has ended, each with the launch that it was started with."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Process, Launch]] = {}

    @property
    def pids(self) -> set[int]:
        """Their ids, and those of the processes that read their samples."""
        own = {process.pid for process, _ in self._waiting.values()}
        return own.union(*map(descendants, own))

    def __contains__(self, process: Process) -> bool:
        return process.rank in self._waiting

    def add(self, process: Process, launch: Launch) -> None:
        self._waiting[process.rank] = process, launch

    def hand_over(self, launches: list[Launch]) -> dict[int, Process]:
        """The processes that continue in the next attempt, by rank. The others save and end first, so that the next attempt reads their
        checkpoint."""
        continuing: dict[int, Process] = {}
        reap([process for process, _ in self._waiting.values()])
        for launch in launches:
            process, before = self._waiting.get(launch.rank, (None, None))
            if process and before and process.running and can_continue(before.env, launch.env) and order(process, world=moved(launch.env)):
                del self._waiting[launch.rank]
                continuing[launch.rank] = replace(process, waiting=False)
        self.end()
        return continuing

    def end(self) -> None:
        """Ends the processes that wait. They save their state, unless they have done so."""
        remaining = [process for process, _ in self._waiting.values()]
        self._waiting = {}
        for process in remaining:
            dismiss(process)
        limit = time.monotonic() + LEAVING_SECONDS
        while any(process.running for process in remaining) and time.monotonic() < limit + KILLED_SECONDS:
            reap(remaining)
            if time.monotonic() > limit:
                for process in remaining:
                    process.kill_group()
            time.sleep(_TURN)
        for process in remaining:
            process.close(process.events, process.stdout, process.stderr)


def to_end(processes: Iterable[Process], reply: Reply | None, *, stopped: bool) -> list[Process]:
    """The processes that end with this attempt. Those that wait for the next one end only if there is none, or after a hang: it may be
    their fault. `stopped`: the supervisor was asked to stop."""
    is_last = stopped or (reply is not None and (reply.end or reply.dump))
    return [process for process in processes if is_last or not process.waiting]


def ends_of_survivors(processes: Iterable[Process], errors: Mapping[int, ErrorEvent], peer_lost: re.Pattern[str]) -> list[End]:
    """The ends of processes that have lost their peers, and wait for the next attempt."""
    return [
        End(
            rank=process.rank,
            exit_code=ExitCode.PEER_LOST,
            signal=None,
            requested=False,
            tail=[],
            error=errors.get(process.rank),
            starting=False,
            uses_contract=True,
            peer_lost=peer_lost,
        )
        for process in processes
        if process.running and process.waiting
    ]


def can_continue(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a process with the variables `before` can continue with those `after`: the job and the shape of the world are the same."""
    return {name for name, _ in before.items() ^ after.items()} <= MOVING


def moved(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a survivor takes over: all of them, because the process may have changed them (an address for a name)."""
    return {name: env[name] for name in sorted(MOVING) if name in env}


def order(process: Process, **content: object) -> bool:
    """Sends an order to a process. False if it takes none, or has ended."""
    if process.orders is None or process.orders in process.closed:
        return False
    try:
        os.write(process.orders, json.dumps(content).encode() + b"\n")
    except OSError:
        return False
    return True


def order_to_leave(process: Process, attempt: int) -> None:
    """Orders a process to leave the world of this attempt. Continues it first if a signal has stopped it."""
    process.send(signal.SIGCONT)
    order(process, leave=attempt)


def dismiss(process: Process) -> None:
    """Ends a process without a next world. Closes its orders first, so that it does not wait for one."""
    process.close(process.orders)
    process.send(signal.SIGTERM)
