"""An asyncio loop in a thread of its own, so that code without asyncio, and a notebook whose loop runs already, can wait for coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

from muster.client import errors

T = TypeVar("T")
END_SECONDS = 2.0
_END = object()


class BackgroundLoop:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="muster-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine. Ctrl-C cancels it. Raises ClientError after end()."""
        if not self._thread.is_alive():
            coroutine.close()
            raise errors.ClientError("the client is closed: make another one")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of an asynchronous generator, which is closed with this one."""
        turn = asyncio.Lock()  # a generator cannot be closed while an item is awaited

        async def following() -> Any:
            async with turn:
                return await anext(items, _END)

        async def close() -> None:
            async with turn:
                await items.aclose()

        try:
            while (item := self.run(following())) is not _END:
                yield item
        finally:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(close(), self._loop)

    def end(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Runs `last`, then ends the loop. Any thread may call it, also the garbage collector."""
        if not self._thread.is_alive():
            return

        async def finish() -> None:
            try:
                await last()
            finally:
                asyncio.get_running_loop().stop()

        asyncio.run_coroutine_threadsafe(finish(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_SECONDS)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
