"""What reads input of others. A target raises only on a defect: each refuses bad input with the errors that it documents."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from muster.admission.read import InvalidJobFileError, parse_job
from muster.api.quantity import amount_of
from muster.channel.tokens import Claim, claim_of
from muster.client.redaction import redact
from muster.kubernetes.api_paths import InvalidNameError, collection, member
from muster.render.merge import MergeError, strategic_merge
from muster_contract.reports import Report
from muster_contract.wire import WireError, encode, parse
from muster_trainer.checkpoint.manifest import Manifest
from muster_trainer.checkpoint.tensor_files import parse_index
from muster_trainer.supervisor.output_tail import peer_lost_pattern, read_tail
from muster_trainer.supervisor.status_posts import PATH, Answer, Request, StatusPosts
from tests.fuzz.inputs import LONGEST, changed, plain, texts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REPORT = b"""{"job": "team/digits", "pod": "digits-worker-0", "role": "worker", "index": 0, "attempt": 1, "jobUid": "u", "podUid": "p",
"sequence": 7, "processes": [{"rank": 0, "state": "Running"}], "phase": "train", "progress": {"step": 3, "loss": "0.5"}, "notices": [],
"termination": {"code": 1, "reason": "UserError", "message": "x"}, "waiting": false, "ranks": [], "stacks": [], "savedSeconds": 0.5}"""
MANIFEST = b"""{"step": 3, "epoch": 0, "seed": 0, "samplesSeen": 96, "world": 2, "strategy": "DDP", "attempt": 1,
"versions": {"torch": "2"}, "identity": {"strategy": "DDP", "batch": {"globalSize": 64}}, "reason": "interval",
"createdAt": "2026-11-21T10:16:14Z", "format": 1,
"files": {"model/rank-0.bin": {"bytes": 4, "sha256": "%s"}}}""" % (b"0" * 64)
CHUNKS = [{"offsets": [0, 0], "shape": [1, 2], "file": "a", "start": 0}, {"offsets": [1, 0], "shape": [1, 2], "file": "a", "start": 8}]
INDEX = json.dumps({"format": 1, "tensors": {"w": {"dtype": "float32", "shape": [2, 2], "chunks": CHUNKS}}}).encode()
CLAIMS = b'{"aud": ["muster"], "exp": 1e10, "kubernetes.io": {"pod": {"name": "a", "uid": "b"}}}'
POST = b"POST " + PATH.encode() + b" HTTP/1.1\r\nAuthorization: Bearer t\r\nContent-Length: 62\r\n\r\n"
POST += b'{"trainerStatus": {"progressPercentage": 4, "metrics": [   ]}}'
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x\n[rank0]: RuntimeError: y\n'
TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====================\n exitcode  : -9 (pid: 1)\n rank : 1\n"
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 1}]}]}}


@dataclass(frozen=True)
class Target:
    """`check` gets one of `inputs`, and raises if what it calls does not keep its word."""

    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


def report(content: bytes) -> None:
    with suppress(WireError):
        read = parse(Report, content)
        assert parse(Report, json.dumps(encode(read))) == read, "what is read can be written and read again"


def token(content: bytes) -> None:
    claims = base64.urlsafe_b64encode(content).decode()
    for text in (f"e30.{claims}.x", content.decode(errors="surrogateescape")):
        assert isinstance(claim_of(text), Claim)


def manifest(content: bytes) -> None:
    with suppress(ValueError):
        read = Manifest.from_bytes(content)
        assert not any(name.startswith("/") or ".." in name.split("/") for name in read.files)


def tensor_index(content: bytes) -> None:
    with suppress(ValueError):
        for stored in parse_index(content, {"a": 16, "b": 0}, dtypes=("float32", "int64"), framework="PyTorch").values():
            assert {chunk.file for chunk in stored.chunks} <= {"a", "b"}


def job(text: str) -> None:
    message = ""
    try:
        parse_job(text, source="job.yaml")
    except InvalidJobFileError as error:
        message = str(error)
    assert len(message) < LONGEST
    assert message.replace("\n", "").isprintable()


def status_post(content: bytes) -> None:
    for chunk in (7, len(content) + 1):
        request, answer = Request(b"t"), None
        for begin in range(0, len(content), chunk):
            answer = request.take(content[begin : begin + chunk])
            if isinstance(answer, Answer):
                break
        if answer is not None:
            assert len(answer.to_bytes()) < LONGEST
            if answer.status is not None:
                assert len(StatusPosts().lines(answer.status, 1.0)) < LONGEST


def merge(parts: tuple[dict[str, Any], dict[str, Any]]) -> None:
    with suppress(MergeError):
        before = json.dumps(parts[0])
        strategic_merge(*parts)
        assert json.dumps(parts[0]) == before, "the base is not changed"


def quantity(text: str) -> None:
    amount = amount_of(text)
    assert amount is None or abs(amount) <= 2**63


def output(text: str) -> None:
    reading = read_tail(text.splitlines(), peer_lost_pattern(()))
    assert len(reading.message) < 10_000


def secrets(text: str) -> None:
    redact({"annotations": {"a": text}, "args": text.split(" ")})


def name(text: str) -> None:
    with suppress(InvalidNameError):
        path = member(collection("v1", "pods", namespace=text), text)
        assert path == f"/api/v1/namespaces/{text}/pods/{text}"
        assert text.replace("-", "a").isalnum()


_REPORT_WORDS = [f'"{word}":'.encode() for word in ("snapshot", "checkpoint", "marks", "resumed", "evaluation", "inputs", "snapshotServer")]
_PATCHES = st.fixed_dictionaries({"spec": st.dictionaries(st.sampled_from(["containers", "volumes", "$patch", "nodeSelector"]), plain)})

TARGETS = {
    "report": Target(changed([REPORT], _REPORT_WORDS), report),
    "tokens": Target(changed([CLAIMS]), token),
    "manifest": Target(changed([MANIFEST]), manifest),
    "tensor-index": Target(changed([INDEX]), tensor_index),
    "job-reader": Target(texts([file.read_text() for file in sorted(EXAMPLES.glob("*.yaml"))]), job),
    "status-posts": Target(changed([POST]), status_post),
    "merge": Target(st.tuples(_PATCHES | st.just(TEMPLATE), _PATCHES | st.just(TEMPLATE)), merge),
    "quantity": Target(texts(["1.5Gi", "-.5e3", "100m", "1e-9"]), quantity),
    "output-tail": Target(texts([TRACEBACK, TORCHRUN, TRACEBACK + TORCHRUN]), output),
    "secrets": Target(texts(["DB_PASS=x --token y https://a:b@c/?sig=d eyJabcdefghijk.a.b -----BEGIN PRIVATE KEY-----"]), secrets),
    "names": Target(texts(["team-1", "a.b"]) | st.text(st.sampled_from("ab-./%?#A0")), name),
}
