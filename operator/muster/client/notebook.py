"""How a notebook shows a job, and its report."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from muster.client.progress import Progress


@dataclass(frozen=True)
class Report:
    """The page of a job, as `muster report` writes it. A notebook shows it in a frame of its own."""

    name: str
    """Name of the job."""
    html: str
    """The whole page. It needs no other file."""

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file, and returns its path. Raises OSError."""
        target = Path(path)
        target.write_text(self.html, encoding="utf-8", errors="backslashreplace")
        return target

    def __repr__(self) -> str:
        return f"<Report of {self.name}>"

    def _repr_html_(self) -> str:
        """The frame is sandboxed, because the page has text of the training code. Scripts in it have no access to the notebook."""
        return f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.html)}" style="width:100%;height:40em;border:0"></iframe>'


def as_html(progress: Progress) -> str:
    """The table. All text of the job is escaped, because it may come from the training code."""
    figures = {
        "phase": progress.phase.value,
        "step": f"{progress.step}" + (f" of {progress.total_steps}" if progress.total_steps else ""),
        "loss": None if progress.loss is None else f"{progress.loss:.4g}",
        "seconds left": progress.eta_seconds,
        "restarts": progress.restarts,
        "message": progress.message or None,
    }
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in figures.items()
        if value is not None
    )
    bar = "" if progress.fraction is None else f"<progress max='1' value='{progress.fraction:.4f}' style='width:20em'></progress>"
    return f"<div><b>{escape(progress.name)}</b> {bar}<table>{rows}</table></div>"
