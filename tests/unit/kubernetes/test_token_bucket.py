"""Rate limits of addresses. Those of reports are in test_coordination.py."""

from __future__ import annotations

import pytest

from muster.kubernetes import token_bucket
from muster.kubernetes.token_bucket import AddressLimits


def test_each_address_has_a_limit_of_its_own() -> None:
    now = [0.0]
    limits = AddressLimits(0.5, 2.0, lambda: now[0])
    limits.bucket("10.0.0.1").tokens -= 2
    assert [limits.bucket(address).tokens for address in ("10.0.0.1", "10.0.0.2")] == [0.0, 2.0]
    now[0] = 2.0
    assert limits.bucket("10.0.0.1").tokens == 1.0


def test_only_the_addresses_that_were_seen_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "MOST_ADDRESSES", 3)
    limits = AddressLimits(0.0, 2.0, lambda: 0.0)
    for number in (*range(4), 1, 4):
        limits.bucket(f"10.0.0.{number}").tokens = 0.0
    assert [limits.bucket(f"10.0.0.{number}").tokens for number in (1, 3, 4)] == [0.0, 0.0, 0.0]
    assert limits.bucket("10.0.0.2").tokens == 2.0
