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

from muster.admission.bounds import MAX_VALUES
from muster.control.cluster import Object
from muster.kubernetes.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)

DEPTH = 200
"""Levels that remain of an answer that is too deep. Admission allows far fewer levels, so it still detects and reports the depth."""

MOST_BRACKETS = 100_000
"""More than any valid job has: its free parts have at most 4,000 values and 64 KiB of text, and its status a few for each replica."""
_MANAGED_FIELDS, _NAME, _SPEC, _STATUS, _TRAINER = b',"managedFields":[', b'],"name":"', b',"spec":{', b',"status":{', b'"trainer":{'
_MANAGER = re.compile(rb'"managedBy":"[^"\\]{1,253}"')
"""No part of the spec before this field is free."""
_ROLE = re.compile(rb'"roles":\{("[a-z0-9-]{1,63}"):\{')
_TOO_MANY = orjson.dumps([0] * (MAX_VALUES + 1))

LONGEST_RETRY_SECONDS = 60.0
"""The longest wait that an answer can ask for. A proxy must not stop the operator for an hour."""

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class UnreadableAnswerError(ClusterError):
    """The answer is not a JSON object."""


class AnswerTooLargeError(ClusterError):
    """The answer is larger than the caller allows."""


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


def without_oversized_spec(text: bytes) -> bytes:
    """A job, or the change of one that a watch delivers, with a small spec instead of one that is far out of bounds.

    A tenant can change a label of such a job many times a second. To parse each change would take a third of a second, in which the event
    loop does nothing else. The API server sorts the fields, and in a text of JSON all quotes are escaped. So these bytes are found only
    where the fields begin. A text of another form is returned as it is.
    """
    if _brackets(text) <= MOST_BRACKETS:
        return text
    fields, names = text.find(_MANAGED_FIELDS), text.find(_NAME, text.find(_MANAGED_FIELDS))
    if 0 <= fields < names:
        text = text[:fields] + text[names + 1 :]
    begin, status = text.find(_SPEC), text.rfind(_STATUS)
    if begin < 0:
        return text
    manager = _MANAGER.search(text, begin)
    spec = b',"spec":{%s%s}' % (manager[0] + b"," if manager else b"", _large_part(text[begin : status if status > begin else len(text)]))
    for rest in (text[status:] if status > begin else b"", b"}}", b"}"):
        shorter = text[:begin] + spec + rest
        if rest and _is_readable(shorter):
            return shorter
    return text


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _large_part(spec: bytes) -> bytes:
    """The part of a spec that is far out of bounds, with just too many values: the template of the first role, or the trainer's config."""
    role = _ROLE.search(spec)
    roles, _, trainer = spec.rpartition(_TRAINER) if _TRAINER in spec else (spec, b"", b"")
    if role and _brackets(roles) > _brackets(trainer):
        return b'"roles":{%s:{"template":%s}}' % (role[1], _TOO_MANY)
    return b'"trainer":{"config":%s}' % _TOO_MANY


def _is_readable(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


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
    message = str(answer.get("message") or f"status {status}")
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


async def whole(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    """The body. Closes the connection and raises AnswerTooLargeError as soon as it has more than `most` bytes."""
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
