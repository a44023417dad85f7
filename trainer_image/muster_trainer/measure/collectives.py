"""The bundled task `collectives`. `muster bench-collectives` runs it in the world of a job, instead of the training.

This module imports no framework. A Library runs each operation with the framework of the job's strategy. Before the framework joins the
world, the task measures a plain TCP connection between the first and the last process, as a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from muster_contract.codes import ExitCode
from muster_contract.config import Key, number
from muster_contract.events import Activity, CollectiveMeasurement, Event, LinkMeasurement
from muster_contract.printed import measurement_line
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.events import Events
from muster_trainer.measure.measuring import Timing, durations
from muster_trainer.measure.meeting import Meeting
from muster_trainer.tasks.config import read_config

FLOAT_BYTES = 4


def _byte_counts(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 64 and all(type(one) is int and 4 <= one <= 2**34 for one in value)


KEYS = (
    Key("sizes", [4**power for power in range(5, 14)], "a list of 1 to 64 numbers of bytes, each from 4 to 16 GiB,", _byte_counts),
    number("seconds", 0.4, positive=True),  # the approximate time for each figure
    Key("all", True, "true or false", lambda value: isinstance(value, bool)),  # false: only the all-reduce that the job uses
)


class Library(Protocol):
    """The collectives of one framework. Every rank calls the same methods in the same order."""

    rank: int
    world: int
    own: str
    """The name, among `operations`, of the all-reduce that the job uses in training."""

    def fingerprint(self) -> Mapping[str, Any]: ...

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        """The operations by name. A name is the collective, and a space and the variant if there is one.

        Each operation moves `floats` float32 numbers: the sum to all ranks, the numbers of one rank to all ranks, or a share of each
        rank to all ranks. `floats` is a multiple of the world's size.
        """

    def synchronise(self) -> object:
        """Waits until the device is done. By default it does nothing, because an operation is done when it returns."""
        return None

    def meet(self) -> object:
        """Waits until all ranks call it. The default is for a single process."""
        return None

    def first(self, number: int) -> int:
        """Returns the number of rank 0, on every rank. The default is for a single process."""
        return number

    def slowest(self, seconds: list[float]) -> list[float]:
        """The maximum over all ranks of each element. The default is for a single process."""
        return seconds


def measure(spec: TrainerSpec, events: Events, make: Callable[[TrainerSpec], Library], *, meeting: Meeting) -> ExitCode:
    """Measures the TCP connection. Then joins the world by `make`, and measures every operation with every size."""
    config = read_config(spec.config, KEYS, others_allowed=False)
    events.phase(Activity.RESTORING)
    with meeting:
        for size, timing in meeting.link([0, *config.sizes]).items():
            send(events, LinkMeasurement(bytes=size, **timing.fields()))
    library = make(spec)
    events.fingerprint(library.fingerprint())
    events.phase(Activity.TRAINING)
    for size in config.sizes:
        floats = -(-size // (FLOAT_BYTES * library.world)) * library.world
        for name, call in library.operations(floats).items():
            if config.all or name == library.own:
                _one(library, events, name, floats=floats, call=call, seconds=config.seconds)
    return ExitCode.COMPLETED


def _one(library: Library, events: Events, name: str, *, floats: int, call: Callable[[], object], seconds: float) -> None:
    """Measures one operation with one size. The time of a collective is the time of the slowest rank."""
    own = durations(call, synchronise=library.synchronise, prepare=library.meet, agree=library.first, warm_up=3, seconds=seconds)
    timing = Timing.of(library.slowest(own))
    if library.rank == 0:
        collective, _, variant = name.partition(" ")
        is_own, size = name == library.own, floats * FLOAT_BYTES
        measured = CollectiveMeasurement(
            operation=collective, variant=variant, own=is_own, bytes=size, world=library.world, **timing.fields()
        )
        send(events, measured)


def send(events: Events, measurement: Event) -> None:
    """Sends a measurement of rank 0, and prints it for clients that read only the log of a pod."""
    events.emit(measurement)
    events.say(measurement_line(measurement))
