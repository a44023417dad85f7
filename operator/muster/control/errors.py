"""What can go wrong between Muster and a cluster. None of it ever counts as a failure of a job."""

from __future__ import annotations


class ClusterError(Exception):
    """The API server did not do what it was asked for; the message is its own."""


class NotFoundError(ClusterError):
    """There is no such object (any more), or none with the uid that was asked for."""


class AlreadyExistsError(ClusterError):
    """An object of that name is there."""


class ConflictError(ClusterError):
    """The object has changed since it was read."""


class GoneError(ClusterError):
    """What a watch or a list is to go on from is no longer known: only looking at all anew helps."""


class RefusedError(ClusterError):
    """Quota, admission, validation or missing rights: asking again helps only when somebody has changed something."""


class UnavailableError(ClusterError):
    """No answer, or one that says to come back later."""
