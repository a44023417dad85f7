"""A node whose kubelet serves the logs that a test writes, so that the API server has logs to pass on."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.api_server.api import Api

NODE = "node-with-logs"


class LogNode:
    """The logs of pods on one node. `write` adds a line, `end` ends a log, and `cut` breaks all connections."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[str, list[tuple[str, str]]] = {}
        self._ended: set[str] = set()
        self._cuts = 0
        self.requests: list[str] = []

    def write(self, pod: str, text: str, time: str | None = None) -> None:
        """Adds a line to the log of a pod, with this time or the current one."""
        with self._changed:
            self._lines.setdefault(pod, []).append((time or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}", text))
            self._changed.notify_all()

    def end(self, pod: str) -> None:
        """The container has ended, so followers of its log get no more lines."""
        with self._changed:
            self._ended.add(pod)
            self._changed.notify_all()

    def restart(self, pod: str) -> None:
        """A new pod of this name has an empty log. A follower of the old log that has not noticed its end is cut off."""
        with self._changed:
            self._ended.discard(pod)
            self._lines.pop(pod, None)
            self._cuts += 1
            self._changed.notify_all()

    def cut(self) -> None:
        """Breaks the connections of all followers."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def read(self, pod: str, *, since: str, follow: bool) -> Iterator[str]:
        """The lines of a log from a time on."""
        shown, cuts = 0, self._cuts
        while True:
            with self._changed:
                while follow and not self._has_news(pod, shown) and self._cuts == cuts:
                    self._changed.wait(60)
                lines, ended = list(self._lines.get(pod, ())), pod in self._ended
            for time, text in lines[shown:]:
                if time[:19] >= since[:19]:
                    yield f"{time} {text}\n"
            shown = len(lines)
            if not follow or ended or self._cuts > cuts:
                return

    def _has_news(self, pod: str, shown: int) -> bool:
        return len(self._lines.get(pod, ())) > shown or pod in self._ended


@contextmanager
def log_node(api: Api, folder: Path) -> Iterator[LogNode]:
    """A Node object of the name NODE, with a kubelet on loopback that serves only logs."""
    node, key, certificate = LogNode(), folder / "kubelet.key", folder / "kubelet.crt"
    subject = ["-subj", "/CN=127.0.0.1", "-days", "1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(node))
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="kubelet of logs", daemon=True)
    thread.start()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
    }
    api.apply(f"/api/v1/nodes/{NODE}", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
    try:
        yield node
    finally:
        api.delete(f"/api/v1/nodes/{NODE}")
        node.cut()
        server.shutdown()
        server.server_close()


def _handler(node: LogNode) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            node.requests.append(self.path)
            pod = address.path.split("/")[3]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            with suppress(OSError):
                for line in node.read(pod, since=query.get("sinceTime", [""])[0], follow="follow" in query):
                    self.wfile.write(line.encode())
                    self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
