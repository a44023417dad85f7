"""The targets of `make fuzz` accept their inputs, and a defect behind one is found."""

from __future__ import annotations

import base64

import pytest

from muster.channel.tokens import claim_of
from muster_contract.reports import Report
from muster_contract.wire import parse
from muster_trainer.checkpoint.manifest import Manifest
from muster_trainer.checkpoint.tensor_files import parse_index
from muster_trainer.supervisor.output_tail import peer_lost_pattern, read_tail
from muster_trainer.supervisor.status_posts import Request
from tests.fuzz import targets
from tests.fuzz.inputs import changed
from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_runs(name: str) -> None:
    assert fuzz(TARGETS[name], 0, batch=20) >= 1


def test_a_planted_crash_is_found() -> None:
    def crashes(content: bytes) -> None:
        if b"null" in content:
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        fuzz(Target(changed([b'{"a": 1}']), crashes), 60)


def test_the_inputs_begin_with_valid_ones() -> None:
    assert parse(Report, targets.REPORT).progress is not None
    assert Manifest.from_bytes(targets.MANIFEST).files
    assert parse_index(targets.INDEX, {"a": 16}, dtypes=("float32",), framework="PyTorch")
    assert claim_of(f"e30.{base64.urlsafe_b64encode(targets.CLAIMS).decode()}.x").uid == "b"
    answer = Request(b"t").take(targets.POST)
    assert answer is not None
    assert answer.status is not None
    assert read_tail(targets.TRACEBACK.splitlines(), peer_lost_pattern(())).message
