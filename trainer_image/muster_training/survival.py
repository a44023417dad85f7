"""What a process does when it has lost its peers, over all the worlds that it trains in (`muster_trainer.training.survivor`)."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from muster_contract.codes import ExitCode
from muster_contract.errors import PeerLost
from muster_contract.events import ErrorEvent, Event, Step, WholeState
from muster_contract.text import text_of
from muster_trainer.host.connections import Connections
from muster_trainer.host.framework import hook
from muster_trainer.host.orders import descriptor_in
from muster_trainer.host.waiting import numeric, wait_for
from muster_trainer.training.survivor import RESCUE_AFTER, Survivor

if TYPE_CHECKING:
    from muster_training.protection import Protection
    from muster_training.session import Session

RANK_ZERO_SECONDS = 10.0
"""The longest wait for rank 0 to listen. After that, PyTorch waits itself, which takes half a second more after each refusal."""


@dataclass(frozen=True)
class Kept:
    """The state that this process brings into the next world: that after `step`, of all objects that are the same on all ranks (`common`),
    and of those that are this rank's own, in the format of `muster_training.trees`. `write` saves `common` to a folder."""

    step: int
    total: int | None
    common: bytearray
    own: bytearray
    write: Callable[[Path], None]


class Stop:
    """Whether this process was asked to stop. Its handler of SIGTERM is installed once."""

    def __init__(self) -> None:
        self.requested = self.is_handled = False
        self.on_request: Callable[[], None] = lambda: None


@dataclass
class Survival:
    """The survival of this process. `present` returns its session, which is another one in each world."""

    present: Callable[[], Session]
    stop: Stop = field(default_factory=Stop)
    kept: Kept | None = None
    """The state of the previous world, until a step is finished in this one."""
    protection: Protection | None = None
    is_broken: bool = False
    """Whether the supervisor has ordered this process to leave its world. Every error means then that a peer is lost."""
    _goes_on: bool = False
    _survivor: Survivor | None = None
    _connections: Connections | None = None
    _has_survived: bool = False
    _has_groups: bool = False
    _rescued: Kept | None = None
    _timer: threading.Timer | None = None
    _rescuing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def may_wait(self) -> bool:
        """Whether this process may go on in another world."""
        return self._goes_on and self._survivor is not None and self._survivor.may_wait

    def listen(self) -> None:
        """From now on, an order of the supervisor ends a collective that waits for a lost peer in vain. Only the process that the
        supervisor has started gets orders: others inherit the variable, and their descriptor of that number is another one."""
        replica = self.present().replica
        has_orders = descriptor_in(os.environ) is not None and os.getsid(0) == os.getpid() and Connections.can_be_closed
        if self._survivor is None and replica is not None and has_orders:
            self._survivor = Survivor(_Events(self.present), self.stop, attempt=replica.attempt, disconnect=self._disconnect)

    def go_on(self) -> None:
        """From now on, this process may go on after the loss of a peer."""
        self._goes_on = True
        self.listen()
        if self._survivor is not None:
            gc.freeze()  # so that a collection after the loss of a peer looks only at what the training has made
            atexit.register(gc.unfreeze)  # libraries such as Triton would print that the frozen objects have leaked

    def meet(self) -> None:
        """Prepares for the connections of a world. In a later world, waits until rank 0 listens, for some seconds at most."""
        self._connections = Connections()
        session = self.present()
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        if self._has_survived and self._has_groups and session.environment.rank and self._survivor:
            with self._survivor.joining(self.rescue) as meanwhile:
                limit = time.monotonic() + RANK_ZERO_SECONDS

                def wait() -> None:
                    meanwhile()
                    if time.monotonic() > limit:
                        raise TimeoutError

                with suppress(TimeoutError):
                    wait_for({"rank 0": address}, RANK_ZERO_SECONDS, meanwhile=wait)

    def keep(self, error: Exception) -> bool:
        """Keeps the state after the last step that is finished, and leaves the world. Returns whether this process can go on in the next
        one: if `error` is the loss of a peer."""
        session, protection = self.present(), self.protection
        if session.replica is None or session.is_stopping or not self.may_wait or not self.is_about_peer(error):
            return False
        is_whole = protection is not None and protection.is_whole
        if not is_whole and self.kept is None:  # the supervisor does not wait for this process, and ends it
            return False
        self._close_connections()
        if protection is not None and is_whole:
            self.kept = protection.hold()
            if self.kept is None:
                protection.fail(error)
        self._has_groups = has_groups()
        if not hook(session.replica.trainer_spec.strategy.framework, "leave_world"):
            return False
        session.leave_world()
        return True

    def await_world(self, message: str) -> None:
        """Waits for the next world, and enters it. Raises PeerLost if there is none."""
        assert self._survivor is not None
        self._stop_timer()
        kept, rank = self.kept, self.present().environment.rank
        last = Step(step=kept.step, total_steps=kept.total) if kept else None
        step = kept.step if kept else self.protection.step if self.protection else 0
        self.protection = None
        text = f"rank {rank}: {message}"
        # A DDP in a cycle of references would take part in the passes of a later one over the same model.
        if not self._survivor.wait(done=step, last=last, message=text, rescue=self.rescue, meanwhile=gc.collect):
            raise PeerLost(text)
        if host := os.environ.get("MASTER_ADDR"):
            os.environ["MASTER_ADDR"] = numeric(host)
        self.is_broken, self._has_survived = False, True
        session = self.present().succeed()
        if kept:
            session.sender.send(WholeState(waits=True))
            self._timer = threading.Timer(RESCUE_AFTER, self.rescue)  # the program may wait for the other ranks where no order reaches it
            self._timer.daemon = True
            self._timer.start()

    def joined(self, step: int) -> None:
        """The ranks of this world have met, and begin after `step`."""
        self._stop_timer()
        if self._has_survived and self._survivor is not None:
            self._survivor.survived(step)

    def rescue(self) -> None:
        """Saves the state that was kept, once, because the next world may not come to its first step. Any thread may call it."""
        with self._rescuing:
            kept = self.kept
            if kept is not None and kept is not self._rescued:
                self._rescued = kept
                self.present().rescue(kept.step, kept.write, seconds=0.0)

    @property
    def is_rescued(self) -> bool:
        """Whether the state that was kept is saved too."""
        return self.kept is not None and self.kept is self._rescued

    def is_about_peer(self, error: BaseException) -> bool:
        """Whether an error of this process means that a peer is lost."""
        protection = self.protection
        return self.is_broken or (protection is not None and protection.is_about_peer(error)) or isinstance(error, PeerLost)

    def _disconnect(self) -> None:
        """Lets the present collective fail. Called in another thread."""
        self.is_broken = True
        self._close_connections()
        self.present().disconnect()
        if self.protection is None or not self.protection.is_whole:
            self.rescue()

    def _close_connections(self) -> None:
        """Without `run`, all connections of the process, because it ends."""
        (self._connections or Connections(also_open=True)).close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@dataclass(frozen=True)
class _Events:
    """The events of this process in its present world."""

    present: Callable[[], Session]

    @property
    def rank(self) -> int:
        return self.present().environment.rank

    def emit(self, event: Event) -> None:
        self.present().sender.send(event)

    def error(self, code: ExitCode, message: str) -> None:
        self.emit(ErrorEvent(code=int(code), reason=code.reason, message=text_of(PeerLost(message))))


def has_groups() -> bool:
    """Whether this process has joined a process group of PyTorch."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())
