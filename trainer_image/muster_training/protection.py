"""A rank that loses its peers saves the last step that is finished, if it has the whole state. Registered programs and the callbacks of
libraries share it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from muster_contract.environment import RESCUE_SECONDS
from muster_contract.errors import PeerLost, UserError
from muster_contract.events import Registered, WholeState
from muster_contract.text import text_of
from muster_trainer.training.agreement import gather
from muster_training.parts import RANDOM, Changed, Part
from muster_training.session import Session
from muster_training.trees import Packed

LONGEST_LINE = 1000  # characters of an error that are searched for the loss of a peer


class Protection:
    """The protection of the steps of one process.

    Args:
        name: the function of the library that made it, for messages.
        write: writes the states that all ranks have in common to a folder, so that they can be restored on every rank.
    """

    def __init__(self, name: str, session: Session, parts: Sequence[Part], write: Callable[[Path, dict[str, Packed]], None]) -> None:
        self.step = 0
        self.own: frozenset[str] = frozenset()
        """The names of the objects whose states differ between the ranks."""
        self._name, self._session, self._parts, self._write = name, session, parts, write
        self._saved: int | None = None
        self._save_seconds = 0.0
        self._is_armed = self._has_rescued = self._is_given_up = False
        self._first: dict[str, str] = {}
        self._process = os.getpid()
        self._peer_lost = session.replica.trainer_spec.strategy.framework.peer_lost if session.replica else ()

    def begin(self, step: int) -> None:
        """Prepares for the first step after `step`. A process for the next attempt is prepared from now on."""
        self.step = self._saved = step
        self._session.sender.send(Registered())
        self._first = {part.name: part.now().digest for part in self._parts if part.name.startswith(RANDOM)}

    def finish(self, step: int) -> None:
        """All state is that of `step`. A later loss of a peer costs no more than the steps after it."""
        self.step = step
        for part in self._parts:
            part.keep()

    def arm(self) -> None:
        """After the first step of an attempt, finds out whether each rank has the whole state. Every rank calls it."""
        session = self._session
        if self._is_armed or session.replica is None or session.saves is None:
            return
        self._is_armed = True
        states = self.compare()
        if session.environment.world == 1 or not session.environment.in_world:
            return
        if needed := self._needed(states):
            session.notify_once(
                f"{self._name}: {', '.join(needed)} differ between the ranks, so a lost process costs the steps since the last save; give "
                "all ranks the same state to lose none"
            )
            return
        session.sender.send(WholeState())
        session.before_end.append(self.fail)

    def compare(self) -> dict[str, Packed]:
        """Finds out which states differ between the ranks. Every rank calls it. Returns the states of the last step that is finished."""
        states: dict[str, Packed] = {}

        def digests_of_this_rank() -> dict[str, str]:
            states.update(self._kept())
            return {name: each.digest for name, each in states.items()}

        of_ranks = gather(self._session.ranks, digests_of_this_rank)
        digests = of_ranks[self._session.ranks.rank]
        # Generators do not count: only processes that were prepared have imported NumPy if the program does not.
        named = [{name for name in each if not name.startswith(RANDOM)} for each in of_ranks]
        if any(names != named[0] for names in named):
            raise UserError(f"{self._name}: the ranks have objects of different names; use the same names on every rank")
        self.own = frozenset(name for name in digests if any(each.get(name) != digests[name] for each in of_ranks))
        return states

    def saved(self, seconds: float) -> None:
        """All ranks have saved the last step that is finished, in so many seconds."""
        self._saved, self._save_seconds = self.step, seconds

    def follow(self, seconds: float | None = None) -> None:
        """`arm` after the first step, and `compare` after a save that a library has done itself in so many `seconds`. State that cannot be
        compared is no error then: the library may be able to save it."""
        if self._is_given_up:
            return
        try:
            if not self._is_armed:
                self.arm()
            if seconds is not None:
                self.compare()
                self.saved(seconds)
        except UserError as error:
            self._is_armed, self._is_given_up = False, True
            self._session.notify_once(f"{self._name}: {text_of(error)}; so a lost process costs the steps since the last save")

    @property
    def is_saved(self) -> bool:
        return self.step == self._saved

    def fail(self, error: BaseException) -> None:
        """Saves the last step that is finished, if `error` ends this process because a peer is gone."""
        if self._is_armed and not self._has_rescued and os.getpid() == self._process and is_about_peer(error, self._peer_lost):
            self._has_rescued = True
            self._rescue()

    def _kept(self) -> dict[str, Packed]:
        return {part.name: part.kept() for part in self._parts}

    def _needed(self, states: dict[str, Packed]) -> list[str]:
        """The objects that differ between the ranks, apart from random generators that the program does not use."""
        return sorted(name for name in self.own if self._first.get(name) != states[name].digest)

    def _rescue(self) -> None:
        if self.is_saved or self._save_seconds > RESCUE_SECONDS:
            return
        try:
            states = self._kept()
        except Changed as changed:
            self._session.rescue_failed(f"{changed} has changed since step {self.step}; finish a step right after the optimizer's step")
            return
        if needed := self._needed(states):
            self._session.rescue_failed(f"{', '.join(needed)} may differ between the ranks since the last save")
            return
        common = {name: each for name, each in states.items() if name not in self.own}
        self._session.rescue(self.step, lambda folder: self._write(folder, common), seconds=self._save_seconds)


def is_about_peer(error: BaseException, patterns: tuple[str, ...]) -> bool:
    """Whether an error, or one that it comes from, says that a peer is lost."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return False
        text = f"{type(seen).__module__}.{type(seen).__qualname__}: {seen}"
        if isinstance(seen, PeerLost) or any(re.search(each, line[:LONGEST_LINE]) for each in patterns for line in text.splitlines()):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
