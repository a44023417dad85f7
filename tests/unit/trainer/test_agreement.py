"""Agreements between ranks, with an engine that counts its collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from muster_contract.errors import BadConfiguration, PeerLost, StorageFull, StorageUnavailable, UserError
from muster_trainer.training.agreement import agree, gather, leave


@dataclass
class Rank:
    """A rank of a world of two. The other rank sends `other`, and is gone after `left` collectives."""

    rank: int
    other: str = '{"value": 2}'
    left: int = 9
    met: int = 0

    def broadcast(self, text: str) -> str:
        return self.gather(text)[0]

    def gather(self, text: str) -> list[str]:
        if self.met == self.left:
            raise PeerLost("the other rank is gone")
        self.met += 1
        return [text, self.other] if self.rank == 0 else [self.other, text]


def _refused() -> None:
    raise BadConfiguration("seven is too much")


def test_an_agreement_takes_one_collective() -> None:
    first, second = Rank(0), Rank(1)
    assert (agree(first, lambda: 1), agree(second, _refused)) == (1, 2)
    assert gather(first, lambda: 1) == [1, 2]
    assert (first.met, second.met) == (2, 1)


@pytest.mark.parametrize("call", [agree, gather])
@pytest.mark.parametrize("left", [1, 9])
@pytest.mark.parametrize("rank", [Rank(0), Rank(1, other='{"code": 11, "message": "seven is too much"}')])
def test_an_error_of_all_ranks_is_raised_after_one_more_collective(call: Any, left: int, rank: Rank) -> None:
    # a rank that ends at once could end the read of the other rank; a rank that is gone by then has read it
    rank.met, rank.left = 0, left
    with pytest.raises(BadConfiguration, match="seven is too much"):
        call(rank, _refused if rank.rank == 0 else lambda: 1)
    assert rank.met == min(2, left)


@pytest.mark.parametrize(
    ("reason", "kind"), [(', "reason": "StorageFull"', StorageFull), (', "reason": "New"', StorageUnavailable), ("", StorageUnavailable)]
)
def test_an_error_of_another_rank_keeps_the_reason_that_says_more_than_its_code(reason: str, kind: type[Exception]) -> None:
    with pytest.raises(StorageUnavailable) as raised:
        agree(Rank(1, other=f'{{"code": 31, "message": "no space"{reason}}}'), lambda: 1)
    assert type(raised.value) is kind


def test_a_peer_that_is_lost_during_an_agreement_is_reported() -> None:
    with pytest.raises(PeerLost):
        agree(Rank(1, left=0), lambda: 1)
    leave(Rank(1, left=0))


def test_an_error_with_an_unknown_code_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no such code"):
        agree(Rank(1, other='{"code": 77, "message": "no such code"}'), lambda: 1)
