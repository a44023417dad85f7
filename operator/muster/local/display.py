"""Shows the progress of a run: a live panel in a terminal, plain lines elsewhere. Escapes control characters, because the logs of replicas
may contain them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from muster.api.job import TrainingJob
from muster.local.messages import figures, progress_line
from muster_contract.text import printable

PLAIN_SECONDS = 5.0  # between two plain progress lines of the same phase
COLOURS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Recovering": "yellow"}


class Display(Protocol):
    """Shows a run. Every method may be called at any time. No method raises an error if the terminal is closed."""

    def show(self, job: TrainingJob) -> None:
        """Shows the job's current status. The runner calls it often."""

    def line(self, text: str) -> None:
        """Shows a line about an event. It stays on the screen."""

    def close(self) -> None:
        """Removes the live panel. Lines may still follow."""


def make_display(*, quiet: bool, to_stderr: bool = False) -> Display:
    """The display for standard output, or standard error."""
    out = sys.stderr if to_stderr else sys.stdout
    if quiet:
        return PlainDisplay(out, time.monotonic, progress=False)
    console = Console(highlight=False, stderr=to_stderr)
    return PanelDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(out, time.monotonic)


class PlainDisplay:
    """Plain lines. Shows progress when the phase changes and every few seconds. Without `progress`, shows none."""

    def __init__(self, out: IO[str], clock: Callable[[], float], *, progress: bool = True) -> None:
        self._out: IO[str] | None = out
        self._clock = clock
        self._progress = progress
        self._shown = ""
        self._phase: object = None
        self._next_time = 0.0

    def show(self, job: TrainingJob) -> None:
        phase = (job.status.phase, job.status.attempt)
        if not self._progress or job.status.phase.final or (phase == self._phase and self._clock() < self._next_time):
            return
        line = progress_line(job.status)
        if line != self._shown:
            self.line(line)
        self._shown, self._phase, self._next_time = line, phase, self._clock() + PLAIN_SECONDS

    def line(self, text: str) -> None:
        try:
            if self._out is not None:
                print(printable(text, keep="\n"), file=self._out, flush=True)
        except OSError:
            self._out = None  # the reader of the output is gone; the run continues

    def close(self) -> None:
        return


class PanelDisplay:
    """A live panel below the lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = Live(console=console, auto_refresh=False, transient=True)
        self._started = False
        self._is_closed = False

    def show(self, job: TrainingJob) -> None:
        self._guarded(lambda: self._refresh(panel(job)))

    def line(self, text: str) -> None:
        self._guarded(lambda: self._console.print(Text(printable(text, keep="\n")), soft_wrap=True))

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None and self._started:
            self._guarded(live.stop)

    def _refresh(self, content: Panel) -> None:
        if self._live is None:
            return
        if not self._started:
            self._started = True
            self._live.start()
        self._live.update(content, refresh=True)

    def _guarded(self, draw: Callable[[], object]) -> None:
        try:
            if not self._is_closed:
                draw()
        except OSError:
            self._is_closed = True  # the terminal was closed; the run continues


def panel(job: TrainingJob) -> Panel:
    """The job's status as a panel of a few lines."""
    status = job.status
    title = Text.assemble(
        (job.metadata.name, "bold"), f" · {job.spec.strategy} · ", (status.phase.value, COLOURS.get(status.phase.value, "cyan"))
    )
    lines = [_bar(job), Text(printable("   ".join(figures(status))))]
    if status.message:
        lines.append(Text(printable(status.message), style="dim"))
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim")


def _bar(job: TrainingJob) -> Table | Text:
    progress = job.status.progress
    if progress is None or not progress.total_steps:
        return Text(f"step {progress.step}" if progress else "no step yet", style="dim")
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    row.add_row(
        ProgressBar(total=progress.total_steps, completed=progress.step),
        f"step {progress.step}/{progress.total_steps}  {100 * progress.step // progress.total_steps} %",
    )
    return row
