"""An event loop whose time passes at once."""

from __future__ import annotations

import asyncio
import selectors


class QuickLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock that jumps to the next timer, so that the tests do not depend on the speed of the machine."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = selectors.DefaultSelector()
        look = selector.select

        def select(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            self.now += timeout or 0.0
            return look(0)

        selector.select = select  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now
