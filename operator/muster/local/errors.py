"""Why a run on this machine cannot begin or go on. Each message says what is wrong, where, and what to do instead."""

from __future__ import annotations

from muster.local.outcome import ExitCode


class RunError(Exception):
    """A run that ends for a reason that is known; `code` is the exit code of `muster run`."""

    code = ExitCode.BAD_CONFIGURATION


class ConfigurationError(RunError):
    """The job, the options or the run directory do not fit."""


class FieldError(ConfigurationError):
    """A field of the job file that does not fit this machine or this run; the message begins with its path."""


class StorageError(RunError):
    """A disk is full or not writable."""

    code = ExitCode.STORAGE_UNAVAILABLE
