"""How a notebook shows a job: a small table with a bar, in HTML. Pure."""

from __future__ import annotations

from html import escape

from muster.client.progress import Progress


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
