"""The bundled task `collectives`: what `muster bench-collectives` runs in the world of a job, in place of its training.

Free of frameworks: a Library says how the framework of the job's strategy does each operation. Before any framework joins the world, a
plain TCP connection between its first and its last process is measured, which all else is held against.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from muster_trainer.contract import ExitCode, TrainerSpec
from muster_trainer.events import Events
from muster_trainer.measuring import Timing, durations
from muster_trainer.meeting import Meeting
from muster_trainer.tasks.config import Key, number, read_config

FLOAT_BYTES = 4


def _byte_counts(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 64 and all(type(one) is int and 4 <= one <= 2**34 for one in value)


KEYS = (
    Key("sizes", [4**power for power in range(5, 14)], "a list of 1 to 64 numbers of bytes, each from 4 to 16 GiB,", _byte_counts),
    number("seconds", 0.4, positive=True),  # about how long each figure is measured
    Key("all", True, "true or false", lambda value: isinstance(value, bool)),  # false: the job's own all-reduce alone
)


class Library(Protocol):
    """How one framework does what ranks do together. Every rank calls the same methods in the same order."""

    rank: int
    world: int
    own: str
    """The name of the all-reduce that the job itself would use, among `operations`."""

    def fingerprint(self) -> Mapping[str, Any]: ...

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        """By name, what moves `floats` float32 numbers, a multiple of the world's size: the sum of them on all ranks, or all of them
        from one rank, or a share of them from each. A name is that of the collective, with a variant behind a space."""

    def synchronise(self) -> object:
        """Waits until the device is done."""

    def meet(self) -> object:
        """Waits until all ranks are here."""

    def first(self, number: int) -> int:
        """Rank 0's number, on every rank."""

    def slowest(self, seconds: list[float]) -> list[float]:
        """For each place of the list, the most that any rank has there."""


def measure(spec: TrainerSpec, events: Events, make: Callable[[TrainerSpec], Library], *, environment: Mapping[str, str]) -> ExitCode:
    """Measures the link, then joins the world by `make`, and measures every operation at every size."""
    config = read_config(spec.config, KEYS, others_allowed=False)
    events.emit("phase", phase="Restoring")
    with Meeting(environment) as meeting:
        for size, timing in meeting.link([0, *config.sizes]).items():
            tell(events, what="link", bytes=size, **timing.fields())
    library = make(spec)
    events.fingerprint(library.fingerprint())
    events.emit("phase", phase="Training")
    for size in config.sizes:
        floats = -(-size // (FLOAT_BYTES * library.world)) * library.world
        for name, call in library.operations(floats).items():
            if config.all or name == library.own:
                _one(library, events, name, floats=floats, call=call, seconds=config.seconds)
    return ExitCode.COMPLETED


def _one(library: Library, events: Events, name: str, *, floats: int, call: Callable[[], object], seconds: float) -> None:
    """One operation at one size. A collective takes as long as on the rank that is through last."""
    own = durations(call, synchronise=library.synchronise, prepare=library.meet, agree=library.first, warm_up=3, seconds=seconds)
    timing = Timing.of(library.slowest(own))
    if library.rank == 0:
        collective, _, variant = name.partition(" ")
        tell(
            events,
            what="collective",
            operation=collective,
            variant=variant,
            own=name == library.own,
            bytes=floats * FLOAT_BYTES,
            world=library.world,
            **timing.fields(),
        )


def tell(events: Events, **values: Any) -> None:
    """One figure, from rank 0: to the supervisor, and as a line of its log, which is all that one has of a pod."""
    values = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in values.items()}
    events.emit("measurement", **values)
    events.say(f"measurement {json.dumps(values)}")
