"""Variables that are too long for the environment of a program, such as the TF_CONFIG of thousands of replicas.

Linux starts no program with a variable longer than 128 KiB. So the operator packs large variables into MUSTER_LARGE_VARIABLES, and the
supervisor unpacks them. Those that are too long for a program stay packed, and the training process unpacks them itself.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping

from muster_contract.environment import LARGE_VARIABLES
from muster_contract.errors import BadConfiguration
from muster_contract.wire import WireError, document, parse, wire_field

LONGEST = 131_072
"""Bytes of an environment variable with its name, the `=` and a NUL. Linux starts no program with a longer one (execve(2))."""
LARGE = 32 * 1024
"""Bytes above which the operator packs a variable, so that the pods of a large job stay small."""
MAX_UNPACKED = 4 * 1024 * 1024
"""Bytes of all packed variables together, as JSON. A TF_CONFIG of 8,194 replicas with the longest names has 1.2 MB."""
_FASTEST = 1
"""The level of zlib. Other levels take up to ten times as long, and save less than a tenth on lists of addresses."""


@document
class _Packed:
    variables: Mapping[str, str] = wire_field(max_length=MAX_UNPACKED, doc="The variables by name.")


def size(name: str, value: str) -> int:
    """The bytes of a variable in the environment of a program."""
    return len(name.encode(errors="surrogateescape")) + len(value.encode(errors="surrogateescape")) + 2


def pack(variables: Mapping[str, str], *, above: int = LARGE) -> dict[str, str]:
    """The variables, with those of more than `above` bytes packed into MUSTER_LARGE_VARIABLES."""
    large = {name: value for name, value in variables.items() if size(name, value) > above}
    if not large:
        return dict(variables)
    small = {name: value for name, value in variables.items() if name not in large}
    text = json.dumps({"variables": large}, separators=(",", ":")).encode()
    return {**small, LARGE_VARIABLES: base64.b64encode(zlib.compress(text, _FASTEST)).decode()}


def unpack(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the packed variables as plain ones, and without MUSTER_LARGE_VARIABLES. Raises BadConfiguration."""
    plain = dict(environment)
    if not (packed := plain.pop(LARGE_VARIABLES, "")):
        return plain
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED + 1)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise BadConfiguration(f"{LARGE_VARIABLES} cannot be unpacked: {error}") from None
    if len(text) > MAX_UNPACKED or not inflater.eof:
        raise BadConfiguration(f"{LARGE_VARIABLES} is cut off, or has more than {MAX_UNPACKED} bytes")
    try:
        variables = parse(_Packed, text).variables
    except WireError as error:
        raise BadConfiguration(f"{LARGE_VARIABLES}: {error}") from None
    for name, value in variables.items():
        if not _is_variable(name, value):
            raise BadConfiguration(f"{LARGE_VARIABLES}: {name!r:.80} is not the name of a variable, or its value is not text")
    return {**plain, **variables}


def _is_variable(name: str, value: str) -> bool:
    try:
        size(name, value)
    except UnicodeEncodeError:
        return False
    return bool(name) and "=" not in name and "\0" not in name + value
