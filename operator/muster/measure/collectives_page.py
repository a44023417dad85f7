"""What `muster bench-collectives` shows: tables and plots of the collectives of a world, held against a plain socket. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.measure.readings import Collective, Socket
from muster.report.page import Finding, Page, Section, Table
from muster.report.plots import SERIES, Line, Lines

KIBI = 1024
GIGA = 1e9
MILLI = 1e3

METHOD = (
    "A time is that of the rank which is through last, from a moment at which all were there: the median of many. A bandwidth is what "
    'each link would have to carry of an operation done as well as possible (the "bus bandwidth" of nccl-tests), so that it can be held '
    "against that of a socket. "
)
SOCKET = (
    "The socket is one TCP connection from the first process to the last, measured before the framework joined the world; it carries one "
    "way only, and nobody adds up anything."
)
DEVICES = "The devices are those of one process, between which there is no socket."


def overview(found: Sequence[Collective], socket: Socket) -> Table:
    """Each operation at the least and at the largest size, and the best that it reaches."""
    least, most = (_size(pick(one.bytes for one in found)) for pick in (min, max))
    rows: list[list[str | float | None]] = []
    for sizes in _by_name(found).values():
        best = max(one.bandwidth for one in sizes)
        ends = (sizes[0].seconds * MILLI, sizes[-1].seconds * MILLI)
        share = [100 * best / socket.best] if socket.best else []
        rows.append([_label(sizes[0]), *ends, best / GIGA, *share])
    head = ["operation", f"{least}: ms", f"{most}: ms", "best GB/s"]
    if not socket.best:
        return Table(head, rows)
    ends = min(socket.seconds.values()), max(socket.seconds.values())
    rows.append(["plain socket", *(end * MILLI for end in ends), socket.best / GIGA, 100.0])
    return Table([*head, "% of the socket"], rows)


def sizes_table(found: Sequence[Collective]) -> Table:
    """Milliseconds, sizes down and operations across."""
    names = _by_name(found)
    times = {(one.name, one.bytes): one.seconds * MILLI for one in found}
    head = ["size", *(_label(sizes[0]) for sizes in names.values())]
    return Table(head, [[_size(size), *(times.get((name, size)) for name in names)] for size in sorted({one.bytes for one in found})])


def findings(found: Sequence[Collective], socket: Socket, *, processors: int | None) -> list[Finding]:
    """What one should take with one. `processors`: how many the processes shared; None: nobody knows."""
    own = [one for one in found if one.own]
    said = []
    if own:
        large, small = own[-1], own[0]
        share = f", {large.bandwidth / socket.best:.0%} of what a plain socket reaches" if socket.best else ""
        said.append(
            Finding(
                f"The job's {large.name} of {_size(large.bytes)} takes {large.seconds * MILLI:.3g} ms: "
                f"{large.bandwidth / GIGA:.3g} GB/s{share}. One of {_size(small.bytes)} takes {small.seconds * MILLI:.3g} ms."
            )
        )
        rivals = [one for one in found if one.bytes == large.bytes and one.name.startswith("AllReduce") and not one.own]
        best = min(rivals, key=lambda one: one.seconds, default=large)
        if best.high < large.low:
            said.append(Finding(f"At that size {best.name} is {large.seconds / best.seconds:.2g} times as fast.", "good"))
    world = found[0].world
    if processors is not None and world > processors:
        who = "processes" if socket.seconds else "devices"
        said.append(Finding(f"{world} {who} shared {processors} processors: the figures say as much of that as of the links.", "bad"))
    return said


def page(found: Sequence[Collective], socket: Socket, *, title: str, subtitle: str, processors: int | None) -> Page:
    """The whole page."""
    sums = [one for one in found if one.name.startswith("AllReduce")]
    others = [one for one in found if not one.name.startswith("AllReduce")]
    return Page(
        title=title,
        subtitle=subtitle,
        findings=findings(found, socket, processors=processors),
        sections=[
            Section("All-reduce", [_plot(sums, socket), overview(found, socket)]),
            *([Section("Other collectives", [_plot(others, socket)])] if others else []),
            Section("Time by size, in milliseconds", [sizes_table(found)]),
            Section("How it was measured", [METHOD + (SOCKET if socket.seconds else DEVICES)]),
        ],
    )


def _plot(found: Sequence[Collective], socket: Socket) -> Lines:
    lines = [
        Line([(one.bytes, one.bandwidth / GIGA) for one in sizes], _label(sizes[0]), colour, 2.2 if sizes[0].own else 1.5, dots=True)
        for sizes, colour in zip(_by_name(found).values(), SERIES, strict=False)
    ]
    carried = [(size, rate / GIGA) for size, rate in socket.bandwidths().items()]
    sizes = sorted({one.bytes for one in found})
    return Lines(
        "bytes that are summed or moved",
        "GB/s",
        [*lines, *([Line(carried, "plain socket", "ink", dots=True)] if carried else [])],
        x_ticks={float(size): _size(size) for size in sizes},
        log_x=True,
        log_y=True,
        height=4.2,
    )


def _by_name(found: Iterable[Collective]) -> dict[str, list[Collective]]:
    """By operation, in the order in which they were measured; the sizes of each in theirs."""
    names: dict[str, list[Collective]] = {}
    for one in sorted(found, key=lambda one: one.bytes):
        names.setdefault(one.name, []).append(one)
    return names


def _label(one: Collective) -> str:
    return f"{one.name} (the job's)" if one.own else one.name


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < KIBI:
            return f"{count:.3g} {unit}"
        count = count // KIBI if count % KIBI == 0 else count / KIBI  # type: ignore[assignment]
    return f"{count:.3g} GiB"
