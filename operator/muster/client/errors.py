"""Errors of the commands on a cluster and of the Python client. Each has an exit code and a message of one line with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.api.status import Reason, TrainingJobStatus

_PACKAGES = ("aiohttp", "kubernetes", "orjson")
_MISSING = "this needs the Kubernetes client: in a checkout of Muster, pip install '.[cluster]'"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The install command, if the error is about a package of the extra `cluster`. Empty otherwise."""
    return _MISSING if (error.name or "").split(".")[0] in _PACKAGES else None


class ClientError(Exception):
    """A command cannot do its work. `code` is the exit code."""

    code = 1


class NoClusterError(ClientError):
    """There is no kubeconfig, or the API server does not answer."""

    code = 3


class NoRightsError(ClientError):
    """The API server cannot authenticate the user, or refuses the request for lack of rights."""

    code = 4


class NotInstalledError(ClientError):
    """The cluster has no TrainingJob definition."""

    code = 5


class OldDefinitionError(ClientError):
    """The TrainingJob definition of the cluster is older than this command."""

    code = 6


class NoJobError(ClientError):
    """There is no such job."""

    code = 7


class ConflictError(ClientError):
    """The object exists already, or has changed meanwhile."""

    code = 8


class RefusedError(ClientError):
    """The API server does not accept the object as it is written, or quota or admission refuses it."""

    code = 11


class NotFoundError(ClientError):
    """An object other than the job does not exist."""


class TooLargeError(ClientError):
    """The API server's answer is larger than this program reads."""


class JobFailedError(ClientError):
    """A job has failed while the program waited for it."""

    code = 10

    def __init__(self, name: str, status: TrainingJobStatus, *, reason: Reason | None) -> None:
        super().__init__(f"{name} failed: {status.message or reason or 'no reason is recorded'}; see explain()")
        self.name = name
        self.reason = reason
        """Why the job failed, in one word, such as ApplicationLimitExceeded."""
        self.message = status.message
        """Why the job failed, in a sentence."""
        self.status = status
        """The status of the failed job."""


class WaitTimeoutError(ClientError, TimeoutError):
    """The job has not reached the phase in time. The job itself goes on."""


class JobStoppedError(ClientError):
    """A local run was stopped while the program waited for it. The run goes on only if it is resumed."""

    code = 21


def ended(name: str, phase: str) -> str:
    """The message for a job that has ended, and that a command would suspend, resume or scale."""
    if phase == "Failed":
        return f"{name} has ended ({phase}): restart it, and it goes on from its last commit"
    return f"{name} has ended ({phase}): submit it under another name to train again"
