"""A hub that speaks as much of Hugging Face's API as the client needs to list a repository and to download its files.

It has no imports beyond the standard library, so that a pod of a trainer image can run it: `python hub.py FOLDER PORT`. A repository is
the folder `FOLDER/models/ORG/NAME` or `FOLDER/datasets/ORG/NAME`. It has one commit, of all that its files hold. Its branch is `main`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LARGE = 64 * 1024
"""Bytes from which on a file is listed as one of Git LFS, with its SHA-256."""
_BLOCK = 64 * 1024


class Hub:
    """The content of the hub, the requests that it received, and its behaviour."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token = ""
        """The only token that it accepts. Empty: it asks for none."""
        self.requests: list[str] = []
        """The path of each request, in the order in which they came."""
        self.listed: dict[str, object] = {}
        """Fields that replace those of a file in a listing, by the name of the file; and files that only the listing has."""
        self.limit: int | None = None
        """The position in a file at which every connection breaks. Shorter files are sent whole."""
        self.sent = 0
        """Bytes of files that it has sent."""

    def downloads(self) -> list[str]:
        """The requested files, one for each GET."""
        return [path for path in self.requests if path.startswith("GET ") and "/resolve/" in path]

    def commit(self, repository: Path) -> str:
        """The commit of a repository."""
        digest = hashlib.sha1()
        for path in files_of(repository):
            digest.update(path.relative_to(repository).as_posix().encode() + path.read_bytes())
        return digest.hexdigest()


def files_of(repository: Path) -> list[Path]:
    """Its files, sorted by name."""
    return sorted(path for path in repository.rglob("*") if path.is_file())


def etag_of(path: Path) -> str:
    """The SHA-256 of a large file, and the id of the blob of a small one."""
    content = path.read_bytes()
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "RepoNotFound" if "Authorization" not in self.headers else "", "Invalid credentials")
            return
        words = path.strip("/").split("/")
        if words[0] == "api":
            self._listing(words[1:])
            return
        kind, words = ("datasets", words[1:]) if words[0] == "datasets" else ("models", words)
        self._file(self.hub.root / kind / words[0] / words[1], words[3], "/".join(words[4:]))

    def _listing(self, words: list[str]) -> None:
        repository = self.hub.root.joinpath(*words[:3])
        if len(words) < 3 or not repository.is_dir():
            self._refuse(404, "RepoNotFound", "Repository not found")
            return
        commit = self.hub.commit(repository)
        if len(words) > 4 and words[4] not in ("main", commit):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        siblings = []
        for path in files_of(repository):
            size, etag = path.stat().st_size, etag_of(path)
            sibling: dict[str, object] = {"rfilename": path.relative_to(repository).as_posix(), "size": size, "blobId": etag[:40]}
            if size >= LARGE:
                sibling["lfs"] = {"size": size, "sha256": etag, "pointerSize": 134}
            siblings.append({**sibling, **self.hub.listed.get(str(sibling["rfilename"]), {})})  # type: ignore[dict-item]
        names = {each["rfilename"] for each in siblings}
        siblings += [{"rfilename": name, "size": 1, "blobId": "0" * 40} for name in self.hub.listed if name not in names]
        name = f"{words[1]}/{words[2]}"
        self._send({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0})

    def _file(self, repository: Path, revision: str, name: str) -> None:
        path = repository / name
        if not path.is_file():
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        content = path.read_bytes()
        begin = 0
        if value := self.headers.get("Range"):
            begin = int(value.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{etag_of(path)}"')
        self.send_header("X-Repo-Commit", self.hub.commit(repository))
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        if self.command == "GET":
            self._stream(content, begin)

    def _stream(self, content: bytes, begin: int) -> None:
        for start in range(begin, len(content), _BLOCK):
            if self.hub.limit is not None and start >= self.hub.limit:
                self.close_connection = True
                return
            block = content[start : start + _BLOCK]
            self.wfile.write(block)
            self.hub.sent += len(block)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send({"error": message}, status, {"X-Error-Code": code, "X-Error-Message": message} if code else {})

    def _send(self, document: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json", "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def server_of(hub: Hub, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """The server of the hub. With port 0 it gets a free port."""
    return ThreadingHTTPServer((host, port), type("Handler", (_Handler,), {"hub": hub}))


@contextmanager
def running(root: Path) -> Iterator[tuple[Hub, str]]:
    """A hub on this machine, and its address."""
    hub = Hub(root)
    server = server_of(hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    server_of(Hub(Path(sys.argv[1])), "0.0.0.0", int(sys.argv[2])).serve_forever()
