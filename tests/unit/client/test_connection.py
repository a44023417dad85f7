"""Answers of an API server, and kubeconfigs, become one line each with an exit code. The answers are those of kube-apiserver 1.34."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from muster.client import errors
from muster.client.connection import Target, client_error, connected
from muster.kubernetes.answers import refusal


def answer(code: int, reason: str, message: str) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}).encode()


ANSWERS: dict[str, tuple[int, bytes, type[errors.ClientError], int]] = {
    "no token": (401, answer(401, "Unauthorized", "Unauthorized"), errors.NoRightsError, 4),
    "no rights": (
        403,
        answer(
            403,
            "Forbidden",
            'trainingjobs.muster.dev is forbidden: User "eve" cannot list resource "trainingjobs" in API group "muster.dev"',
        ),
        errors.NoRightsError,
        4,
    ),
    "no definition": (404, b"404 page not found\n", errors.NotInstalledError, 5),
    "an old definition": (
        400,
        answer(400, "BadRequest", 'TrainingJob in version "v1beta1" cannot be handled: strict decoding error: unknown field "spec.preset"'),
        errors.OldDefinitionError,
        6,
    ),
    "no such job": (404, answer(404, "NotFound", 'trainingjobs.muster.dev "digit" not found'), errors.NotFoundError, 1),
    "a name that is taken": (409, answer(409, "AlreadyExists", 'trainingjobs.muster.dev "digits" already exists'), errors.ConflictError, 8),
    "a quota for jobs": (
        403,
        answer(403, "Forbidden", 'trainingjobs.muster.dev "digits" is forbidden: exceeded quota: team'),
        errors.RefusedError,
        11,
    ),
    "a rule of the definition": (422, answer(422, "Invalid", 'TrainingJob "digits" is invalid: spec: bad'), errors.RefusedError, 11),
    "a fault of the server": (500, answer(500, "InternalError", "etcd\nis away"), errors.NoClusterError, 3),
    "a proxy": (502, b"<html>\nBad Gateway</html>", errors.NoClusterError, 3),
}


@pytest.mark.parametrize(("status", "text", "kind", "code"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_becomes_one_line_and_an_exit_code(status: int, text: bytes, kind: type[errors.ClientError], code: int) -> None:
    error = client_error(asyncio.run(refusal(status, text)), context="here")
    assert (type(error), error.code) == (kind, code)
    assert "\n" not in str(error)


def message_for(target: Target) -> str:
    async def connect() -> None:
        async with connected(target):
            pass

    with pytest.raises(errors.NoClusterError) as raised:
        asyncio.run(connect())
    return str(raised.value)


def test_a_missing_kubeconfig_or_context_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config"
    assert f"the kubeconfig {file} does not exist" in message_for(Target(kubeconfig=str(file)))
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": [], "current-context": "x"}))
    assert "has no such context" in message_for(Target(kubeconfig=str(file), context="other"))
    file.write_text("{")
    assert message_for(Target(kubeconfig=str(file))).count("\n") == 0
