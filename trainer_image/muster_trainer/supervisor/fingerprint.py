"""Do the ranks of a replica run the same software on the same devices? Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

COMPARED = ("python", "framework", "version", "devices", "threads")


def differences(fingerprints: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """One sentence for each rank and property in which it differs from most of the others (in a draw: from the
    group with the lowest rank). `fingerprints` is by rank. Hosts are not compared."""
    flat = {rank: _flat(fingerprint) for rank, fingerprint in sorted(fingerprints.items())}
    names = sorted({name for properties in flat.values() for name in properties})
    return [sentence for name in names for sentence in _differences_in(name, flat)]


def _flat(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    properties = {name: _shown(fingerprint[name]) for name in COMPARED if name in fingerprint}
    libraries = fingerprint.get("libraries")
    if isinstance(libraries, Mapping):
        properties |= {str(name): _shown(version) for name, version in libraries.items()}
    return properties


def _differences_in(name: str, flat: Mapping[int, Mapping[str, str]]) -> list[str]:
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, properties in flat.items():
        ranks_of[properties.get(name, "none")].append(rank)
    usual = max(ranks_of, key=lambda value: (len(ranks_of[value]), -min(ranks_of[value])))
    return [
        f"{_ranks([rank])} has {name} {value}, {_ranks(ranks_of[usual])} {_have(ranks_of[usual])} {usual}"
        for value, ranks in ranks_of.items()
        if value != usual
        for rank in ranks
    ]


def _shown(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(str(rank) for rank in ranks)


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
