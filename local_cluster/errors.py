"""Errors of the creation of a cluster. Every message has the remedy."""


class ClusterError(Exception):
    """The command cannot go on. The message is for its user."""


class CommandFailedError(ClusterError):
    """A command ended with an error, or did not end in time.

    Attributes:
        output: its standard error, or its standard output if that is empty.
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(f"{message}\n{output}".rstrip())
        self.output = output


class MissingError(ClusterError):
    """This machine lacks a required program, and this package may not or cannot install it."""
