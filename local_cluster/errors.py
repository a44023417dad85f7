"""What can go wrong while a cluster is made. Every message says what to do about it."""


class ClusterError(Exception):
    """The harness cannot go on; the message is for the person who called it."""


class CommandFailedError(ClusterError):
    """A command ended with an error, or not in time.

    Attributes:
        output: what it wrote to standard error (to standard output where that is empty).
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(f"{message}\n{output}".rstrip())
        self.output = output


class MissingError(ClusterError):
    """Something that the harness needs is not on this machine and it may not or cannot get it."""
