"""Receives status posts. This is the HTTP protocol by which programs, such as Hugging Face transformers, report to Kubeflow Trainer.

A post is `{"trainerStatus": {"progressPercentage": 40, "metrics": [{"name": "current_step", "value": "20"}, ...]}}` with a bearer token.
The size of a post is limited, and its content is not trusted. A connection has one request, and each request has an answer.

`Request` parses HTTP itself, because `http.server` cannot keep the limits: it reads 6 MB of headers before a handler can check the token,
limits the time of a read but not that of a request, and needs a thread for each connection. Here a connection holds at most 73 KiB, and
the loop of the supervisor reads it like the pipe.
Source: `KubeflowCallback` in `transformers/integrations/integration_utils.py`, 5.23.0.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from muster_contract.environment import STATUS_TOKEN, STATUS_URL, STATUS_VARIABLES
from muster_contract.events import MAX_ENTRIES, MAX_SECONDS, Activity, Evaluation, Event, PhaseEvent, Step, encode_event
from muster_contract.wire import LARGEST_INT
from muster_trainer.checkpoint.documents import shallow

PATH = "/trainer-status"
REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,200}) HTTP/1\.[01]\r?")
LONGEST_HEAD = 8192
LONGEST_BODY = 65536
DEEPEST = 8
LONGEST_FIGURE = 64
"""The most characters of the value of a metric."""
TOKEN_FILE = "trainer-status-token"
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
OWN_METRICS = {"current_step", "total_steps", "current_epoch", "epoch", "loss"}
"""Metrics about the progress. All other metrics are figures of the model."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request, and the `trainerStatus` of the request."""

    code: HTTPStatus
    message: str
    status: Mapping[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """The answer as HTTP."""
        body = json.dumps({"message": self.message}).encode() + b"\n"
        head = (
            f"HTTP/1.1 {self.code.value} {self.code.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body


class Request:
    """One HTTP request, which arrives in chunks."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._received = b""

    def take(self, chunk: bytes) -> Answer | None:
        """Adds a chunk. Returns the answer, or None while the request is not complete."""
        self._received += chunk
        head, ends, body = self._received.partition(b"\r\n\r\n")
        if len(head) > LONGEST_HEAD:
            return Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers have more than {LONGEST_HEAD} bytes")
        if not ends:
            return None
        line, *lines = head.split(b"\r\n")
        headers = _headers(lines)
        if headers is None:
            return Answer(HTTPStatus.BAD_REQUEST, "a header is malformed or comes twice")
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not re.fullmatch(rb"[0-9]{1,9}", length):
            return Answer(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length, and the body as it is")
        if int(length) > LONGEST_BODY:
            return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {LONGEST_BODY} bytes")
        if len(body) < int(length):
            return None
        return self._answer(line, headers, body[: int(length)])

    def _answer(self, line: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Answer:
        request = REQUEST_LINE.fullmatch(line)
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not secrets.compare_digest(token.strip(), self._token):
            return Answer(HTTPStatus.UNAUTHORIZED, f"send the token in the file {STATUS_TOKEN} as Authorization: Bearer TOKEN")
        if request is None or request[2] != PATH.encode():
            return Answer(HTTPStatus.NOT_FOUND, f"post to {PATH}")
        if request[1] != b"POST":
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, f"{PATH} takes POST only")
        status = _status(body)
        if status is None:
            return Answer(HTTPStatus.BAD_REQUEST, 'the body must be a JSON object such as {"trainerStatus": {"metrics": []}}')
        return Answer(HTTPStatus.OK, "taken", status)


def _headers(lines: list[bytes]) -> dict[bytes, bytes] | None:
    """The headers by their names in lower case. None if one is malformed, or if one that is used here occurs twice."""
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not re.fullmatch(rb"[!-9;-~]+", name):
            return None
        if name in headers and name in (b"content-length", b"authorization", b"transfer-encoding"):
            return None
        headers[name] = value.strip()
    return headers


def _status(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not shallow(document, depth=DEEPEST):
        return None
    status = document.get("trainerStatus")
    return status if isinstance(status, dict) else None


class StatusPosts:
    """Converts the posts of one attempt to events of the contract."""

    def __init__(self) -> None:
        self.has_posts = False
        """Whether any post has arrived."""
        self.superseded = False
        """Whether the program also sends events itself. Posts are then ignored, because events have more information."""
        self._total: int | None = None
        self._last: tuple[int, float] | None = None
        """The step and epoch of the newest post that had them."""
        self._first: tuple[int, float] | None = None
        """The step of the first post that had one, and the time of that post."""

    @property
    def is_only_source(self) -> bool:
        """Whether posts are the only reports of progress. The time between two posts may be long, so a missing post does not mean a
        hang."""
        return self.has_posts and not self.superseded

    def lines(self, status: Mapping[str, Any], now: float) -> bytes:
        """The events of a post, as lines that a program would send. `now` is the time of the post in monotonic seconds."""
        self.has_posts = True
        if self.superseded:
            return b""
        documents = (encode_event(event) for event in self._events(status, now))
        own = ({name: value for name, value in document.items() if name not in ("time", "rank")} for document in documents)
        return b"".join(json.dumps(document).encode() + b"\n" for document in own)

    def _events(self, status: Mapping[str, Any], now: float) -> list[Event]:
        figures = _figures(status.get("metrics"))
        self._total = _whole(figures.get("total_steps")) or self._total
        step, epoch, loss = _whole(figures.get("current_step")), figures.get("current_epoch"), figures.get("loss")
        if step is not None and epoch is not None:
            self._last = (step, epoch)
        if step is None and status.get("progressPercentage") == 100:
            epoch = figures.get("epoch")
            step = self._total if self._is_whole_training(figures) else None
        if not step:
            return [PhaseEvent(phase=Activity.TRAINING)]
        text = None if loss is None else str(loss)
        remaining = self._remaining(step, status.get("estimatedRemainingSeconds"), now)
        whole_epoch = _whole(epoch, cut=True)
        events: list[Event] = [Step(step=step, total_steps=self._total, epoch=whole_epoch, loss=text, remaining_seconds=remaining)]
        others = {name: value for name, value in figures.items() if name not in OWN_METRICS and math.isfinite(value)}
        if others:
            events.append(Evaluation(step=step, metrics=dict(list(others.items())[:MAX_ENTRIES])))
        return events

    def _remaining(self, step: int, posted: object, now: float) -> float | None:
        """The estimated seconds to the end, from the time since the first post. For the first post, the estimate of the program.

        The program's own estimate is less accurate, because it counts steps before a resume as steps of this attempt.
        """
        self._first = self._first or (step, now)
        first, began = self._first
        if self._total and step > first:
            return (now - began) / (step - first) * max(0, self._total - step)
        return float(posted) if isinstance(posted, int) and 0 <= posted <= MAX_SECONDS else None

    def _is_whole_training(self, figures: Mapping[str, float]) -> bool:
        """Whether the last post came after all steps. It has no step, and it always has 100 %, even if the training was stopped.

        If the attempt began at step 0, the steps per second and the seconds show it. Otherwise the epoch shows it, compared with an earlier
        post.
        """
        if not self._total:
            return False
        seconds, rate = figures.get("train_runtime", math.nan), figures.get("train_steps_per_second", math.nan)
        trained = seconds * rate + 0.0005 * seconds  # the rate is rounded to three decimals
        if trained + 0.5 >= self._total:
            return True
        step, epoch = self._last or (0, math.nan)
        per_epoch = step / epoch if epoch > 0 else math.nan
        missing = self._total - figures.get("epoch", math.nan) * per_epoch
        return missing <= max(0.5, 0.005 * per_epoch)  # the epoch is rounded to two decimals


def _figures(metrics: object) -> dict[str, float]:
    """The metrics that are numbers."""
    figures = {}
    for metric in metrics if isinstance(metrics, list) else ():
        name, value = (metric.get("name"), metric.get("value")) if isinstance(metric, dict) else (None, None)
        if (
            not isinstance(name, str)
            or not isinstance(value, str | int | float)
            or isinstance(value, bool)
            or len(str(value)[: LONGEST_FIGURE + 1]) > LONGEST_FIGURE
        ):
            continue
        with suppress(ValueError, OverflowError):
            figures[name] = float(value)
    return figures


def _whole(value: float | None, *, cut: bool = False) -> int | None:
    """The figure as a whole number; None if it is not one. With `cut`, decimals are dropped."""
    if value is None or not 0 <= value <= LARGEST_INT or (value != int(value) and not cut):
        return None
    return int(value)


def status_variables(environ: Mapping[str, str], *, url: str, token: str, folder: Path) -> dict[str, str]:
    """The variables that a program needs to post its status to `url`. Empty if the user has set any of them.

    Writes the token to a file in `folder`. Raises OSError if that fails.
    """
    if any(name in environ for name in STATUS_VARIABLES):
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TOKEN_FILE
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(token)
    return {STATUS_URL: url, STATUS_TOKEN: str(path), **_without_proxy(environ)}


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that exempt the loopback interface from the user's proxy."""
    if not any(environ.get(name) for name in PROXIES):
        return {}
    names = [name for name in ("no_proxy", "NO_PROXY") if environ.get(name)] or ["NO_PROXY"]
    return {name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in names if environ.get(name) != "*"}
