"""What the tasks that measure have said (`measurement` events, docs/architecture.md), as costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.measure.cost import Costs, Line

Measurement = Mapping[str, Any]
_MARK = "measurement {"


def in_log(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The measurements that stand in the log of a job's first pod, whatever stands before them in their lines."""
    found = []
    for line in lines:
        _, mark, rest = line.partition(_MARK)
        if mark:
            try:
                found.append(json.loads("{" + rest))
            except ValueError:
                continue  # a line that was cut
    return found


@dataclass(frozen=True)
class Collective:
    """An operation at one size: `seconds` until the last rank is through, and the interval of this median."""

    name: str
    own: bool
    bytes: int
    world: int
    seconds: float
    low: float
    high: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second over each link, as nccl-tests defines "bus bandwidth": what the hardware would have to carry of an operation done
        as well as possible, so that it may be held against that of a socket."""
        parts = {"AllReduce": 2 * (self.world - 1), "AllGather": self.world - 1, "ReduceScatter": self.world - 1, "Broadcast": self.world}
        return parts[self.name.partition(" ")[0]] / self.world * self.bytes / self.seconds


@dataclass(frozen=True)
class Socket:
    """A plain TCP connection between the first and the last process: seconds by bytes, where 0 bytes are a round trip."""

    seconds: Mapping[int, float]

    @property
    def round_trip(self) -> float:
        return self.seconds.get(0, 0.0)

    def bandwidths(self) -> dict[int, float]:
        """Bytes a second by bytes, the answer of a byte included."""
        return {size: size / seconds for size, seconds in sorted(self.seconds.items()) if size}

    @property
    def best(self) -> float:
        return max(self.bandwidths().values(), default=0.0)


def collectives(found: Sequence[Measurement]) -> list[Collective]:
    return [
        Collective(
            name=f"{one['operation']} {one['variant']}".strip(),
            own=one["own"],
            bytes=one["bytes"],
            world=one["world"],
            seconds=one["median"],
            low=one["low"],
            high=one["high"],
        )
        for one in found
        if one["what"] == "collective"
    ]


def socket(found: Sequence[Measurement]) -> Socket:
    return Socket({one["bytes"]: one["median"] for one in found if one["what"] == "link"})


def costs(rehearsals: Mapping[int, Sequence[Measurement]], link: Line, *, processors: int | None) -> Costs:
    """Of rehearsals by so many processes; what a process takes is measured where it computes alone."""
    alone = rehearsals[1]
    return Costs(
        steps={processes: Line.through({one["samples"]: one["median"] for one in found}) for processes, found in rehearsals.items()},
        memory=Line.through({one["samples"]: one["peakBytes"] for one in alone}),
        gradient_bytes=alone[0]["gradientBytes"],
        state_bytes=alone[0]["stateBytes"],
        link=link,
        processors=processors,
    )


def link_of(found: Sequence[Measurement]) -> Line:
    """The all-reduce of two processes by bytes."""
    return Line.through({one.bytes: one.seconds for one in collectives(found)})
