"""Errors that stop a local run. Each message has the error, its place and the remedy."""

from __future__ import annotations

from muster_contract.codes import ExitCode


class RunError(Exception):
    """The base of these errors. `code` is the exit code of `muster run`."""

    code = ExitCode.BAD_CONFIGURATION


class ConfigurationError(RunError):
    """The job, the options or the run directory are not usable."""


class FieldError(ConfigurationError):
    """A field of the job file is not usable on this machine or in this run. The message begins with the field's path."""


class StorageError(RunError):
    """A disk is full or not writable."""

    code = ExitCode.STORAGE_UNAVAILABLE


class InputError(RunError):
    """An input cannot be fetched. `code` shows whether another try may help."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = ExitCode(code) if code in set(ExitCode) else ExitCode.INPUT_UNAVAILABLE
