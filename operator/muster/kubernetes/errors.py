"""The one family of errors of the API server's client."""

from __future__ import annotations


class ClusterError(Exception):
    """The API server did not carry out a request. The message is the server's."""

    retry_seconds = 0.0
    """The shortest time before the next try, if the server has set one (Retry-After)."""
    status = 0
    """The HTTP status of the answer. 0 if there is no answer."""
    reason = ""
    """The server's own word for it, such as NotFound. Empty if the answer does not come from the API server itself."""


class NotFoundError(ClusterError):
    """The object does not exist, or has another uid than the requested one."""


class AlreadyExistsError(ClusterError):
    """An object of that name already exists."""


class ConflictError(ClusterError):
    """The object has changed since it was read."""


class ExpiredError(ClusterError):
    """The resourceVersion or continue token of a watch or a list has expired. Only a new list helps."""


class RefusedError(ClusterError):
    """Quota, admission, validation or RBAC refused the request. A retry helps only after a change of the object or of the rules."""


class UnavailableError(ClusterError):
    """The server did not answer, or its answer asks for a retry later."""


class UnreadableAnswerError(ClusterError):
    """The answer is not a JSON object."""


class AnswerTooLargeError(ClusterError):
    """The answer is larger than the caller allows."""
