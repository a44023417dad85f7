"""Turns the measurements of measuring jobs into costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.tools.measure.cost import Costs, Line
from muster_contract.events import CollectiveMeasurement, Event, LinkMeasurement, StepMeasurement
from muster_contract.printed import read_measurement_line


def in_log(lines: Iterable[str]) -> list[Event]:
    """The measurements in the log of a job's first pod. Each may follow other text in its line."""
    return [measured for line in lines if (measured := read_measurement_line(line)) is not None]


@dataclass(frozen=True)
class Collective:
    """An operation at one size. `seconds` is the median time until the last rank has finished, and `low` to `high` is its interval. `own`
    is whether the job itself uses this variant."""

    name: str
    own: bool
    bytes: int
    world: int
    seconds: float
    low: float
    high: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second over each link if the operation were optimal, as nccl-tests defines "bus bandwidth". It can be compared with the
        bandwidth of a socket."""
        parts = {"AllReduce": 2 * (self.world - 1), "AllGather": self.world - 1, "ReduceScatter": self.world - 1, "Broadcast": self.world}
        return parts[self.name.partition(" ")[0]] / self.world * self.bytes / self.seconds


@dataclass(frozen=True)
class Socket:
    """A plain TCP connection between the first and the last process: seconds by bytes. The entry for 0 bytes is a round trip."""

    seconds: Mapping[int, float]

    def bandwidths(self) -> dict[int, float]:
        """Bytes a second by bytes, including the reply of one byte."""
        return {size: size / seconds for size, seconds in sorted(self.seconds.items()) if size}

    @property
    def best(self) -> float:
        return max(self.bandwidths().values(), default=0.0)


def collectives(measured: Iterable[Event]) -> list[Collective]:
    return [
        Collective(
            name=f"{one.operation} {one.variant}".strip(),
            own=one.own,
            bytes=one.bytes,
            world=one.world,
            seconds=one.median,
            low=one.low,
            high=one.high,
        )
        for one in measured
        if isinstance(one, CollectiveMeasurement)
    ]


def socket(measured: Iterable[Event]) -> Socket:
    return Socket({one.bytes: one.median for one in measured if isinstance(one, LinkMeasurement)})


def rehearsed(measured: Iterable[Event]) -> list[StepMeasurement]:
    """The steps among the measurements."""
    return [one for one in measured if isinstance(one, StepMeasurement)]


def costs(rehearsals: Mapping[int, Sequence[StepMeasurement]], link: Line, *, processors: int | None) -> Costs:
    """The costs from the steps of rehearsals, by the number of processes. Memory is that of the rehearsal with one process."""
    single = rehearsals[1]
    return Costs(
        steps={processes: Line.through({one.samples: one.median for one in steps}) for processes, steps in rehearsals.items()},
        memory=Line.through({one.samples: one.peak_bytes for one in single}),
        gradient_bytes=single[0].gradient_bytes,
        state_bytes=single[0].state_bytes,
        link=link,
        processors=processors,
    )


def link_of(measured: Iterable[Event]) -> Line:
    """The all-reduce of two processes by bytes."""
    return Line.through({one.bytes: one.seconds for one in collectives(measured)})
