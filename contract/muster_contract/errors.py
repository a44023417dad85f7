"""Errors that end a training process with a known exit code."""

from __future__ import annotations

from muster_contract.codes import (
    INPUT_DISK_FULL,
    INPUT_FORBIDDEN,
    INPUT_NOT_FOUND,
    LOSS_NOT_FINITE,
    STORAGE_FORBIDDEN,
    STORAGE_FULL,
    STORAGE_READ_ONLY,
    ExitCode,
)


class TrainerError(Exception):
    """An end with a known meaning. Its message is for the user: what is wrong, where, and what to do instead."""

    code: ExitCode = ExitCode.USER_ERROR
    finer_reason = ""
    """A reason that says more than that of the code."""

    @property
    def reason(self) -> str:
        return self.finer_reason or self.code.reason


class UserError(TrainerError):
    """The training code failed by itself."""

    code = ExitCode.USER_ERROR


class LossNotFinite(UserError):  # noqa: N818
    """The loss of a step is NaN or infinite."""

    finer_reason = LOSS_NOT_FINITE


class BadConfiguration(TrainerError):  # noqa: N818 (the contract's name for it)
    """The job cannot run as it is written. A retry changes nothing."""

    code = ExitCode.BAD_CONFIGURATION


class PeerLost(TrainerError):  # noqa: N818
    """Another member of the world went away, or a newer attempt took over."""

    code = ExitCode.PEER_LOST


class ConnectionLost(PeerLost):
    """A collective failed, because the connection to another member of the world is gone."""


class CheckpointDamaged(TrainerError):  # noqa: N818
    """A checkpoint that the user named does not verify."""

    code = ExitCode.CHECKPOINT_DAMAGED


class StorageUnavailable(TrainerError):  # noqa: N818
    """The checkpoint storage is full or cannot be reached."""

    code = ExitCode.STORAGE_UNAVAILABLE


class StorageFull(StorageUnavailable):
    """The checkpoint storage has no room, or the quota is used up."""

    finer_reason = STORAGE_FULL


class StorageReadOnly(StorageUnavailable):
    """The file system of the checkpoint storage is read-only."""

    finer_reason = STORAGE_READ_ONLY


class StorageForbidden(StorageUnavailable):
    """The processes may not write to the checkpoint storage."""

    finer_reason = STORAGE_FORBIDDEN


class InputUnavailable(TrainerError):  # noqa: N818
    """An input cannot be fetched now: the network, the server or the disk is at fault."""

    code = ExitCode.INPUT_UNAVAILABLE


class InputRefused(TrainerError):  # noqa: N818
    """An input does not exist, or may not be read. A retry changes nothing."""

    code = ExitCode.INPUT_REFUSED


class InputDiskFull(InputUnavailable):
    """The disk of the node has no room for the input."""

    finer_reason = INPUT_DISK_FULL


class InputNotFound(InputRefused):
    """The source does not have the input."""

    finer_reason = INPUT_NOT_FOUND


class InputForbidden(InputRefused):
    """The credentials do not allow to read the input."""

    finer_reason = INPUT_FORBIDDEN


def error_of(code: int, message: str, reason: str = "") -> TrainerError:
    """The error with this code, which another rank has reported. `reason` may say more than the code."""
    kind = next((kind for kind in TrainerError.__subclasses__() if kind.code == code), UserError)
    return next((finer for finer in kind.__subclasses__() if reason and finer.finer_reason == reason), kind)(message)
