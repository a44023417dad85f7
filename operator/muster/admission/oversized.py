"""Cuts the JSON text of a job whose spec is far out of bounds, before it is parsed.

A tenant can change a label of such a job many times a second, and each change delivers the whole job. Parsing it takes a third of a second
and more, in which an event loop does nothing else. No parser gives the same protection: a parser that only skips the spec (pydantic, which
builds no objects for it) takes a fifth of that time, and counting brackets takes a hundredth.
`tests/unit/admission/test_oversized.py` measures this.
"""

from __future__ import annotations

import re

import orjson

from muster.admission.bounds import MAX_VALUES

MOST_BRACKETS = 100_000
"""More than any valid job has: its free parts have at most 4,000 values and 64 KiB of text, and its status a few for each replica."""
_MANAGED_FIELDS, _NAME, _SPEC, _STATUS, _TRAINER = b',"managedFields":[', b'],"name":"', b',"spec":{', b',"status":{', b'"trainer":{'
_MANAGER = re.compile(rb'"managedBy":"[^"\\]{1,253}"')
"""No part of the spec before this field is free."""
_ROLE = re.compile(rb'"roles":\{("[a-z0-9-]{1,63}"):\{')
_TOO_MANY = orjson.dumps([0] * (MAX_VALUES + 1))


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
