"""What the API server answers, read from JSON.

Tenants decide how deep and how large their objects are. The API server takes 10,000 levels of nesting, and every JSON parser at hand takes
fewer. So lists and mappings below DEPTH are emptied before an answer is given up: every object can then be read far enough to say what is
wrong with it, and none keeps the others of its list from being read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import orjson

from muster.control.cluster import Object
from muster.control.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    GoneError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)

DEPTH = 200
"""Levels that are kept of an answer that is too deep: many more than admission takes, so that it sees that there were too many."""

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class UnreadableAnswerError(ClusterError):
    """The answer is no JSON object."""


class AnswerTooLargeError(ClusterError):
    """The answer is larger than the caller wants to hold."""


async def parsed(text: bytes) -> Object:
    """The object in an answer. Raises UnreadableAnswerError."""
    try:
        answer = orjson.loads(text)
    except ValueError:
        answer = await asyncio.to_thread(_parsed_if_deep, text)  # up to half a second for a megabyte of brackets
    if not isinstance(answer, dict):
        raise UnreadableAnswerError(f"the API server's answer is no JSON object: {_beginning(text)}")
    return answer


def _parsed_if_deep(text: bytes) -> object:
    try:
        return orjson.loads(shallow(text, DEPTH))
    except ValueError as error:
        raise UnreadableAnswerError(f"the API server's answer cannot be parsed: {error}: {_beginning(text)}") from None


def shallow(text: bytes, depth: int) -> bytes:
    """JSON text, with every list and mapping at level `depth` emptied. Text that is no JSON stays none."""
    kept: list[bytes] = []
    level = begin = 0
    for token in _STRINGS_AND_BRACKETS.finditer(text):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == depth:
                    kept.append(text[begin : token.end()])
            case b"]" | b"}":
                if level == depth:
                    begin = token.start()
                level -= 1
    return b"".join([*kept, text[begin:]])


def error_of(status: int, answer: Object) -> ClusterError:
    """The error that a Status object of the API server stands for."""
    message = str(answer.get("message") or f"status {status}")
    if status == HTTPStatus.NOT_FOUND:
        return NotFoundError(message)
    if status == HTTPStatus.CONFLICT:
        return AlreadyExistsError(message) if answer.get("reason") == "AlreadyExists" else ConflictError(message)
    if status == HTTPStatus.GONE:
        return GoneError(message)
    if status in _REFUSALS:
        return RefusedError(message)
    return UnavailableError(f"{status}: {message}")


async def refusal(status: int, text: bytes) -> ClusterError:
    """The error in an answer that is no success, which a proxy may have written."""
    try:
        return error_of(status, await parsed(text))
    except UnreadableAnswerError:
        return error_of(status, {"message": _beginning(text)})


async def whole(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    """The body. Raises AnswerTooLargeError, and closes the connection, as soon as it has more than `most` bytes."""
    chunks: list[bytes] = []
    size = 0
    async with response:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if most is not None and size > most:
                response.close()
                raise AnswerTooLargeError(f"the API server's answer has more than {most} bytes")
    return b"".join(chunks)


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line


def _beginning(text: bytes) -> str:
    return text[:200].decode(errors="replace")
