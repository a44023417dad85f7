"""Variables that are too long for a program: packed, and unpacked."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib

import pytest

from muster_contract.environment import LARGE_VARIABLES
from muster_contract.errors import BadConfiguration
from muster_contract.large_variables import LARGE, LONGEST, MAX_UNPACKED, pack, size, unpack
from tests.support.seeds import seeded_random

ADDRESSES = ",".join(f"worker-{index}.job.ns.svc:2222" for index in range(8192))


def encoded(text: bytes) -> dict[str, str]:
    return {LARGE_VARIABLES: base64.b64encode(zlib.compress(text)).decode()}


def document(variables: object) -> dict[str, str]:
    return encoded(json.dumps({"variables": variables}).encode())


def test_large_variables_are_packed_and_unpacked() -> None:
    variables = {"SMALL": "a", "HOSTS": ADDRESSES, "OTHER": "é" * LARGE}
    packed = pack(variables)
    assert set(packed) == {"SMALL", LARGE_VARIABLES}
    assert size(LARGE_VARIABLES, packed[LARGE_VARIABLES]) < LONGEST < size("HOSTS", ADDRESSES)
    assert unpack({**packed, "PATH": "/bin"}) == {**variables, "PATH": "/bin"}


def test_a_variable_is_large_from_a_size_in_bytes() -> None:
    fitting = "é" * 8
    assert pack({"V": fitting}, above=size("V", fitting)) == {"V": fitting}
    assert set(pack({"V": fitting}, above=size("V", fitting) - 1)) == {LARGE_VARIABLES}


def test_an_environment_without_packed_variables_stays_as_it_is() -> None:
    assert unpack({"A": "1"}) == {"A": "1"}
    assert unpack({"A": "1", LARGE_VARIABLES: ""}) == {"A": "1"}


def test_the_largest_variables_can_be_unpacked_and_no_larger_ones() -> None:
    room = MAX_UNPACKED - len(json.dumps({"variables": {"V": ""}}))
    assert unpack(document({"V": "x" * room})) == {"V": "x" * room}
    with pytest.raises(BadConfiguration, match=f"more than {MAX_UNPACKED} bytes"):
        unpack(document({"V": "x" * (room + 1)}))


@pytest.mark.parametrize(
    "environment",
    [
        {LARGE_VARIABLES: "no base64!"},
        {LARGE_VARIABLES: "éé"},
        {LARGE_VARIABLES: base64.b64encode(b"not compressed").decode()},
        {LARGE_VARIABLES: base64.b64encode(zlib.compress(b'{"variables": {}}')[:-3]).decode()},
        encoded(b"[" * 100_000),
        encoded(b"\xff"),
        encoded(b"[]"),
        document(["A"]),
        document({"A": 1}),
        document({"A": "\0"}),
        document({"A": "\ud800"}),
        document({"A=B": "1"}),
        document({"": "1"}),
    ],
)
def test_damaged_packed_variables_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(BadConfiguration, match=LARGE_VARIABLES):
        unpack(environment)


def test_packed_variables_are_not_unpacked_beyond_the_limit() -> None:
    packer = zlib.compressobj()
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(100)), packer.flush()])
    with pytest.raises(BadConfiguration, match="more than"):
        unpack({LARGE_VARIABLES: base64.b64encode(bomb).decode()})


def test_random_texts_are_unpacked_unchanged() -> None:
    chosen = seeded_random()
    texts = {f"V{each}": "".join(chosen.choices('a"\\é\n𝕏$ ', k=chosen.randrange(300))) for each in range(50)}
    assert unpack(pack(texts, above=chosen.randrange(400))) == texts


PROCESS = """
import os, subprocess, sys
from muster_trainer.host.large_variables import unpack_here

unpack_here()
child = "import os; print(len(os.environ['SHORT']), 'LONG' in os.environ)"
print(len(os.environ["LONG"]), flush=True)
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_a_process_with_a_variable_that_is_too_long_can_start_programs() -> None:
    packed = pack({"LONG": ADDRESSES, "SHORT": "1" * 50_000})
    ended = subprocess.run([sys.executable, "-c", PROCESS], env={**os.environ, **packed}, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(len(ADDRESSES)), "50000", "False"]
