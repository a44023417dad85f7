"""The server at which the ranks of Horovod find one another: `python -m muster_horovod.rendezvous HOST PORT`. It is Horovod's own.

It prints one line when it listens, or says why it cannot.
"""

from __future__ import annotations

import sys

LISTENS = "listens"


def main(host: str, port: int) -> None:
    """Serves until it is killed, with the process of rank 0 that has started it."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    try:
        server = RendezvousHTTPServer((host, port), RendezvousHandler, verbose=0)
    except OSError as error:
        print(error.strerror or error)
        return
    print(LISTENS, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
