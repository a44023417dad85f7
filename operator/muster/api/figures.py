"""Figures as people read them. Pure."""

from __future__ import annotations


def rounded(loss: str) -> str:
    """The loss with four digits. Text that is not a number stays as it is."""
    try:
        return f"{float(loss):.4g}"
    except ValueError:
        return loss


def duration(seconds: float) -> str:
    """A duration such as `42 s`, `3:05` or `2:03:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
