"""Reads the answers of the API server from JSON.

Tenants decide how deep and how large their objects are. The API server accepts 10,000 levels of nesting, which is more than JSON parsers
accept. So lists and mappings below DEPTH are emptied if an answer cannot be parsed. Every object can then be read far enough to report its
problem, and does not stop the others of its list.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import orjson

from muster.kubernetes.errors import (
    AlreadyExistsError,
    AnswerTooLargeError,
    ClusterError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnreadableAnswerError,
)
from muster.kubernetes.objects import Object

DEPTH = 200
"""Levels that remain of an answer that is too deep. Admission allows far fewer levels, so it still detects and reports the depth."""

LONGEST_RETRY_SECONDS = 60.0
"""The longest wait that an answer can ask for. A proxy must not stop the operator for an hour."""

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string may lack its end: if the search went on within it, its time would grow with the square of the length."""


async def parsed(text: bytes) -> Object:
    """The object in an answer. Raises UnreadableAnswerError."""
    try:
        answer = orjson.loads(text)
    except ValueError:
        answer = await asyncio.to_thread(_parsed_if_deep, text)  # up to half a second for a megabyte of brackets
    if not isinstance(answer, dict):
        raise UnreadableAnswerError(f"the API server's answer is not a JSON object: {_beginning(text)}")
    return answer


def _parsed_if_deep(text: bytes) -> object:
    try:
        return orjson.loads(shallow(text, DEPTH))
    except ValueError as error:
        raise UnreadableAnswerError(f"the API server's answer cannot be parsed: {error}: {_beginning(text)}") from None


def shallow(text: bytes, depth: int) -> bytes:
    """The JSON text, with every list and mapping at level `depth` emptied. Text that is not JSON stays invalid."""
    pieces: list[bytes] = []
    level = begin = 0
    for token in _STRINGS_AND_BRACKETS.finditer(text):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == depth:
                    pieces.append(text[begin : token.end()])
            case b"]" | b"}":
                if level == depth:
                    begin = token.start()
                level -= 1
    return b"".join([*pieces, text[begin:]])


def error_of(status: int, answer: Object) -> ClusterError:
    """The error for a Status object of the API server."""
    error = _error_of(status, answer, str(answer.get("message") or f"status {status}"))
    error.status, error.reason = status, str(answer.get("reason") or "")
    return error


def _error_of(status: int, answer: Object, message: str) -> ClusterError:
    if status == HTTPStatus.NOT_FOUND:
        return NotFoundError(message)
    if status == HTTPStatus.CONFLICT:
        return AlreadyExistsError(message) if answer.get("reason") == "AlreadyExists" else ConflictError(message)
    if status == HTTPStatus.GONE:
        return ExpiredError(message)
    if status in _REFUSALS:
        return RefusedError(message)
    return UnavailableError(f"{status}: {message}")


async def refusal(status: int, text: bytes, *, retry_after: str | None = None) -> ClusterError:
    """The error for an unsuccessful answer, which may come from a proxy. `retry_after` is the value of that header."""
    try:
        error = error_of(status, await parsed(text))
    except UnreadableAnswerError:
        error = error_of(status, {"message": _beginning(text)})
    error.retry_seconds = _retry_seconds(retry_after)
    return error


def _retry_seconds(header: str | None) -> float:
    """The seconds of a header Retry-After, at most LONGEST_RETRY_SECONDS. The API server sends whole seconds, and no dates."""
    if header is None or not re.fullmatch("[0-9]{1,9}", header.strip()):
        return 0.0
    return min(float(header), LONGEST_RETRY_SECONDS)


async def whole(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body. Closes the connection and raises AnswerTooLargeError as soon as it has more than `most` bytes."""
    chunks: list[bytes] = []
    size = 0
    async with response:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                response.close()
                raise AnswerTooLargeError(f"the API server's answer has more than {most} bytes")
    return b"".join(chunks)


async def lines(content: aiohttp.StreamReader, most: int) -> AsyncIterator[bytes]:
    """The lines as they arrive, without a last one that has no end. A line is cut to its first `most` bytes: a program decides how long a
    line of its log is."""
    line = b""
    async for chunk in content.iter_any():
        end, *others = chunk.split(b"\n")
        line += end[: most - len(line)]
        for other in others:
            yield line
            line = other[:most]


def _beginning(text: bytes) -> str:
    return text[:200].decode(errors="replace")
