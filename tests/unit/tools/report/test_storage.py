"""Histories in a bucket: what the store answers is read within bounds."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from muster.tools.report import storage


@pytest.mark.timeout(60)
@pytest.mark.parametrize("names", [[], ["team/"]])
def test_a_listing_without_an_end_is_cut(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = count()

    def answer(**_: object) -> dict[str, Any]:
        objects = [{"Key": f"{name}events.jsonl"} for name in names]
        return {"Contents": objects, "NextContinuationToken": str(next(tokens))}

    monkeypatch.setattr(storage, "_client", lambda uri: SimpleNamespace(list_objects_v2=answer))
    bucket: Any = storage.storage_of("s3://bucket")
    with bucket.folder() as folder:
        assert folder.names() == [name.rstrip("/") for name in names]
    assert next(tokens) == storage.MOST_PAGES
