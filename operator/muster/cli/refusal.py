"""The error of a command that cannot do its work."""

from __future__ import annotations

from typing import IO, Any

import click


class RefusalError(click.ClickException):
    """A message for the user, shown as it is, and an exit code (11: bad configuration)."""

    def __init__(self, message: str, code: int = 11) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # declared for the class, read from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=True)
