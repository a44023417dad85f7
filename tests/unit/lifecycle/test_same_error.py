"""Messages of the same error, with what differs between attempts, and of other errors."""

from __future__ import annotations

import pytest

from muster.lifecycle.facts.same_error import same_error


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 1: ValueError: NaN", "rank 0: ValueError: NaN"),
        ("[rank1]: ValueError: NaN", "[rank0]: ValueError: NaN"),
        ("RuntimeError: failed on rank 1", "RuntimeError: failed on rank 2"),
        (
            "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
            "RuntimeError: DataLoader worker (pid 29) is killed by signal: Killed. ",
        ),
        ("DataLoader worker (pid(s) 12, 34) exited unexpectedly", "DataLoader worker (pid(s) 56, 78) exited unexpectedly"),
        ("process 12 ended, pid=7", "process 13 ended, pid=8"),
        ("<Thing object at 0x7f01ab> is bad", "<Thing object at 0x55DDee> is bad"),
        ("connect to [127.0.0.1]:31415 failed", "connect to [127.0.0.1]:59182 failed"),
        ("connect to (10.0.0.1, 29500) failed", "connect to (10.0.0.2, 29500) failed"),
        ("connect to [::1]:31415 failed", "connect to [::ffff:10.0.0.1]:59182 failed"),
        ("connect to localhost:31415 failed", "connect to localhost:59182 failed"),
        ("no answer of worker-0.job.ns.svc:29500", "no answer of worker-0-1.job.ns.svc.cluster.local:29500"),
        ("address in use, port: 29500", "address in use, port: 29511"),
        ("no space in /tmp/tmpab12cd_9/data", "no space in /tmp/tmpzz9_kq1a/data"),
        ("cannot read /tmp/run-k2j3h4k5/x.json", "cannot read /tmp/run-9zz_kq1a/x.json"),
        ("no file /dev/shm/torch_123_456_0", "no file /dev/shm/torch_789_12_0"),
        ("cannot read step-00000100-0-1", "cannot read step-00000100-0-2"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174000"),
        ("2026-11-28 21:53:08.123456: F out of memory", "2026-11-29T07:00:01Z: F out of memory"),
        ("F1128 21:53:08.123456   4711 file.cc:33] bad", "F1129 07:03:08.999999   29 file.cc:33] bad"),
        ("ran for 600029 milliseconds", "ran for 600031 milliseconds"),
        ("at 1795260507.1", "at 1795260999.25"),
    ],
)
def test_what_differs_between_attempts_does_not_make_another_error(one: str, other: str) -> None:
    assert same_error(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: bad sample 17", "ValueError: bad sample 18"),
        ("ValueError: shard-0003", "ValueError: shard-0004"),
        ("no file /tmp/data/shard-0003", "no file /tmp/data/shard-0004"),
        ("expected a tensor of rank 3 and size 4", "expected a tensor of rank 3 and size 5"),
        ("train.py:12: NaN", "train.py:13: NaN"),
        ("shape [32, 10]", "shape [32, 11]"),
        ("rank 0: NaN", "rank 0: Inf"),
        ("loss 0.25", "loss 0.5"),
    ],
)
def test_other_numbers_make_another_error(one: str, other: str) -> None:
    assert not same_error(one, other)
