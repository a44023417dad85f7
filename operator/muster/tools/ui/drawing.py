"""Draws pages with the templates of this package. Plots that did not change are drawn once."""

from __future__ import annotations

import threading
from typing import Any

import jinja2
from cachetools import LRUCache
from markupsafe import Markup

from muster.tools.report.history import ReportError
from muster.tools.report.page import environment, style
from muster.tools.report.plots import Bars, Lines, svg

MOST_PLOTS = 256


class Drawing:
    """The templates, with a cache of plots. Several threads may use it."""

    def __init__(self) -> None:
        self._plots: LRUCache[tuple[str, float], Markup] = LRUCache(MOST_PLOTS)
        self._turn = threading.Lock()
        self._templates = environment(jinja2.PackageLoader("muster.tools.ui", "templates"))
        self._templates.globals["svg"] = self._svg

    def page(self, template: str, **values: Any) -> str:
        """The text of a page."""
        return self._templates.get_template(template).render(**values)

    @property
    def style(self) -> str:
        return style()

    def _svg(self, plot: Lines | Bars, width: float) -> Markup:
        key = repr(plot), width
        with self._turn:  # matplotlib keeps its settings in globals
            if key not in self._plots:
                try:
                    self._plots[key] = svg(plot, width)
                except ReportError as error:
                    return Markup("<p>{}</p>").format(f"{error}.")
            return self._plots[key]
