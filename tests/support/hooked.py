"""A receiver of webhooks on loopback. It checks signatures by the text of https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Receiver:
    """Answers with the statuses in `answers`, in turn, and with 204 after them. `received` has the messages that got 204."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)

    def is_signed(self, number: int, key: bytes) -> bool:
        """Whether the signature of a request is that of its identifier, time and body."""
        headers, body = self.requests[number]
        content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return hmac.compare_digest(headers.get("webhook-signature", ""), f"v1,{signature}")


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            status = receiver.answers.pop(0) if receiver.answers else 204
            if status == 204:
                receiver.received.append(json.loads(body))
            self.send_response(status)
            self.send_header("Location", f"{receiver.url}elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join(10)
