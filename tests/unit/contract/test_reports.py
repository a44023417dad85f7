"""Reports of older trainer images are read."""

from __future__ import annotations

from typing import Any

import pytest

from muster_contract.notices import Notice, NoticeReason
from muster_contract.reports import MAX_NOTICES, Report
from muster_contract.wire import WireError, decode


def report(**fields: Any) -> Report:
    return decode(Report, {"job": "a/b", "pod": "p", "role": "worker", "index": 0, "attempt": 0, **fields})


def test_a_notice_may_be_a_text() -> None:
    stalled = {"reason": "InputStalled", "message": "training waits"}
    assert report(notices=["summaries\ncannot be written" + "x" * 2000, stalled]).notices == (
        Notice(message=("summaries\\ncannot be written" + "x" * 2000)[:1024], reason=NoticeReason.NOTICE),
        Notice(message="training waits", reason=NoticeReason.INPUT_STALLED),
    )


@pytest.mark.parametrize("notices", ["text", [3], ["text"] * (MAX_NOTICES + 1)])
def test_other_notices_are_refused(notices: object) -> None:
    with pytest.raises(WireError, match=r"notices"):
        report(notices=notices)


@pytest.mark.parametrize(
    ("sent", "properties"),
    [
        ({"python": "3.12", "threads": 4}, {"python": "3.12", "threads": "4"}),
        ({"python": 3.12, "threads": "4"}, {"python": "3.12", "threads": "4"}),
        ({"framework": True, "version": [2, 1]}, {"framework": "True", "version": "2, 1"}),
        ({"devices": "cpu"}, {"devices": "cpu"}),
        ({"devices": 1}, {"devices": "1"}),
        ({"devices": [0, 1]}, {"devices": "0, 1"}),
        ({"libraries": {"numpy": 2}}, {"numpy": "2"}),
        ({"libraries": {"numpy": None}}, {"numpy": "None"}),
        ({"libraries": "numpy"}, {}),
    ],
)
def test_properties_of_any_simple_type_become_texts(sent: dict[str, Any], properties: dict[str, str]) -> None:
    (fingerprint,) = report(fingerprints=[sent]).fingerprints
    assert fingerprint.properties == properties


@pytest.mark.parametrize("sent", [{"python": {}}, {"threads": [[1]]}, {"devices": [{}]}, {"libraries": {"numpy": {}}}])
def test_other_properties_are_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=r"fingerprints\[0\]"):
        report(fingerprints=[sent])


def test_a_report_of_an_older_release_names_its_termination_message_otherwise() -> None:
    old = {"job": "default/a", "pod": "a-worker-0", "role": "worker", "index": 0, "attempt": 1, "lastWords": {"code": 20, "attempt": 1}}
    termination = decode(Report, old).termination
    assert termination is not None
    assert (termination.code, termination.attempt) == (20, 1)
