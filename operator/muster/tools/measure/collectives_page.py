"""The output of `muster bench-collectives`: tables and plots that compare the collectives of a world with a plain socket. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.tools.measure.readings import Collective, Socket
from muster.tools.report.page import Finding, Page, Section, Table
from muster.tools.report.plots import SERIES, Line, Lines

KIBI = 1024
GIGA = 1e9
MILLI = 1e3

METHOD = (
    "A time is the median over many repetitions, from the moment at which all ranks are ready until the last rank has finished. A "
    'bandwidth is the "bus bandwidth" of nccl-tests: what each link would carry if the operation were optimal. It can be compared '
    "with the bandwidth of a socket. "
)
SOCKET = (
    "The socket is one TCP connection from the first process to the last. It was measured before the framework joined the world. It sends "
    "in one direction only, and does not sum anything."
)
DEVICES = "All devices belong to one process, so there is no socket between them."


def overview(collectives: Sequence[Collective], socket: Socket) -> Table:
    """Each operation at its smallest and its largest size, and its best bandwidth."""
    least, most = (_size(pick(one.bytes for one in collectives)) for pick in (min, max))
    rows: list[list[str | float | None]] = []
    for sizes in _by_name(collectives).values():
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


def sizes_table(collectives: Sequence[Collective]) -> Table:
    """Milliseconds, sizes down and operations across."""
    names = _by_name(collectives)
    times = {(one.name, one.bytes): one.seconds * MILLI for one in collectives}
    head = ["size", *(_label(sizes[0]) for sizes in names.values())]
    return Table(head, [[_size(size), *(times.get((name, size)) for name in names)] for size in sorted({one.bytes for one in collectives})])


def findings(collectives: Sequence[Collective], socket: Socket, *, processors: int | None) -> list[Finding]:
    """The main results. `processors` is how many the processes shared, or None if unknown."""
    own = [one for one in collectives if one.own]
    results = []
    if own:
        large, small = own[-1], own[0]
        share = f", {large.bandwidth / socket.best:.0%} of what a plain socket reaches" if socket.best else ""
        results.append(
            Finding(
                f"The job's {large.name} of {_size(large.bytes)} takes {large.seconds * MILLI:.3g} ms: "
                f"{large.bandwidth / GIGA:.3g} GB/s{share}. One of {_size(small.bytes)} takes {small.seconds * MILLI:.3g} ms."
            )
        )
        rivals = [one for one in collectives if one.bytes == large.bytes and one.name.startswith("AllReduce") and not one.own]
        best = min(rivals, key=lambda one: one.seconds, default=large)
        if best.high < large.low:
            results.append(Finding(f"At that size {best.name} is {large.seconds / best.seconds:.2g} times as fast.", "good"))
    world = collectives[0].world
    if processors is not None and world > processors:
        units = "processes" if socket.seconds else "devices"
        results.append(
            Finding(f"{world} {units} shared {processors} processors, so the figures depend on that as much as on the links.", "bad")
        )
    return results


def page(collectives: Sequence[Collective], socket: Socket, *, title: str, subtitle: str, processors: int | None) -> Page:
    """The whole page."""
    sums = [one for one in collectives if one.name.startswith("AllReduce")]
    others = [one for one in collectives if not one.name.startswith("AllReduce")]
    return Page(
        title=title,
        subtitle=subtitle,
        findings=findings(collectives, socket, processors=processors),
        sections=[
            Section("All-reduce", [_plot(sums, socket), overview(collectives, socket)]),
            *([Section("Other collectives", [_plot(others, socket)])] if others else []),
            Section("Time by size, in milliseconds", [sizes_table(collectives)]),
            Section("How it was measured", [METHOD + (SOCKET if socket.seconds else DEVICES)]),
        ],
    )


def _plot(collectives: Sequence[Collective], socket: Socket) -> Lines:
    lines = [
        Line([(one.bytes, one.bandwidth / GIGA) for one in sizes], _label(sizes[0]), colour, 2.2 if sizes[0].own else 1.5, dots=True)
        for sizes, colour in zip(_by_name(collectives).values(), SERIES, strict=False)
    ]
    rates = [(size, rate / GIGA) for size, rate in socket.bandwidths().items()]
    sizes = sorted({one.bytes for one in collectives})
    return Lines(
        "bytes that are summed or sent",
        "GB/s",
        [*lines, *([Line(rates, "plain socket", "ink", dots=True)] if rates else [])],
        x_ticks={float(size): _size(size) for size in sizes},
        log_x=True,
        log_y=True,
        height=400,
    )


def _by_name(collectives: Iterable[Collective]) -> dict[str, list[Collective]]:
    """The collectives by operation, each ordered by size."""
    names: dict[str, list[Collective]] = {}
    for one in sorted(collectives, key=lambda one: one.bytes):
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
