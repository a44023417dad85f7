"""Shows progress on standard error: the current step, and how long it took."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_started = time.monotonic()
_lock = threading.Lock()


def say(text: str) -> None:
    """Prints one line, with the seconds since the command began."""
    with _lock:
        print(f"[{time.monotonic() - _started:5.0f} s] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str, expected: str = "") -> Iterator[None]:
    """Prints that a step begins and, if it succeeds, how long it took. `expected` is the usual duration, such as "about 3 min"."""
    begun = time.monotonic()
    say(f"{text} ..." + (f" ({expected})" if expected else ""))
    try:
        yield
    except BaseException:
        say(f"{text}: failed after {time.monotonic() - begun:.1f} s")
        raise
    say(f"{text}: done in {time.monotonic() - begun:.1f} s")
