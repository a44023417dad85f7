"""Regular expressions for the messages of communication libraries, used by several frameworks, about the loss of a peer.

Lookaheads stand for "and": `a.*b` would take quadratic time on a line of many `a`.
"""

GLOO_PEER_LOST = (
    r"Connection closed by peer",
    r"(?<!\[Errno 104\] )(?<!\[Errno 54\] )Connection reset by peer",  # Python's own message has an Errno
    r"^(?=.*gloo).*(Connection refused|Broken pipe|Timed out waiting)",
    r"^(?=.*gloo)(?=.*connect).* timed out",
    r"Application timeout caused pair closure",
)
NCCL_PEER_LOST = (
    r"ncclRemoteError",
    r"remote process exited or there was a network error",
    r"NCCL communicator was aborted",
    r"Watchdog caught collective operation timeout",
)
