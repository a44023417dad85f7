"""`muster` as a user starts it, on the API server of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DONE_SECONDS = 180


@dataclass(frozen=True)
class Muster:
    """The command line, with a kubeconfig and a namespace."""

    kubeconfig: Path
    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end."""
        return subprocess.run(
            self._command(arguments),
            env=self._environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DONE_SECONDS,
            check=False,
        )

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts the command, and kills it at the end of the block if it is still running."""
        with subprocess.Popen(
            self._command(arguments),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "muster.cli", arguments[0], "-n", self.namespace, *arguments[1:]]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
