"""Checks of compute resources: their names, their amounts, and that devices have limits. Kubernetes refuses a pod with most of these
mistakes, and leaves a pod with the others pending for ever."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from muster.admission.paths import step
from muster.admission.rules import listed
from muster.admission.sentences import nearest
from muster.api.problems import Problem
from muster.api.quantity import amount_of
from muster.strategies.accelerators import ACCELERATORS, GPUS, TPU

NATIVE = ("cpu", "memory", "ephemeral-storage")
"""The resources of Kubernetes itself whose names are fixed."""
_PAGES = "hugepages-"
_BYTES = ("memory", "ephemeral-storage")
_LEAST_BYTES = 2**20
_SIMILAR_DOMAIN = 0.9

_GPU = listed(GPUS, "or")
_MEANT: Mapping[str, str] = {
    **dict.fromkeys(("gpu", "cuda"), _GPU),
    "tpu": TPU,
    **dict.fromkeys(("core", "vcpu", "ncpu", "numcpu"), "cpu"),
    **dict.fromkeys(("mem", "ram"), "memory"),
    **dict.fromkeys(("storage", "disk", "localstorage"), "ephemeral-storage"),
}
"""What users of other tools write for a resource, without plural and underscores."""


def resource_problems(limits: Mapping[str, Any], requests: Mapping[str, Any], path: str, *, below: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of the limits and requests at `path`. `below` has limits from elsewhere, which these override."""
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, quantity in amounts.items():
            here = step(f"{path}.{part}", name)
            if meant := _meant(name):
                yield Problem(here, f"is not a resource of Kubernetes: write {meant}")
            elif message := _wrong_amount(name, quantity):
                yield Problem(here, message)
    every = {**below, **limits}
    for name, quantity in requests.items():
        if not _meant(name) and (message := _without_limit(name, quantity, every.get(name))):
            yield Problem(step(f"{path}.requests", name), message)


def _meant(name: str) -> str | None:
    """The name that was meant. None if this can be the name of a resource: one of Kubernetes, or domain/name of a device plugin."""
    if name in NATIVE or name.startswith(_PAGES) or name in ACCELERATORS:
        return None
    by_plain, plain = {_plain(each): each for each in ACCELERATORS}, _plain(name)
    domain, slash, last = name.rpartition("/")
    if slash:
        same_device = [each for each in ACCELERATORS if each.rpartition("/")[2] == last]
        close = nearest(domain, [each.rpartition("/")[0] for each in same_device], cutoff=_SIMILAR_DOMAIN)
        return by_plain.get(plain) or next((each for each in same_device if each.startswith(f"{close}/")), None)
    return by_plain.get(plain) or _MEANT.get(plain) or nearest(name, NATIVE) or f"{', '.join(NATIVE)} or domain/name, such as {GPUS[0]}"


def _plain(name: str) -> str:
    """The letters and digits of a name, without a plural and without `.com`."""
    return re.sub(r"\.com|[^a-z0-9]", "", name[:100].lower()).removesuffix("s")


def _wrong_amount(name: str, quantity: Any) -> str | None:
    amount = amount_of(quantity) if isinstance(quantity, str | int) and not isinstance(quantity, bool) else None
    if amount is None:
        return None
    if amount < 0:
        return f"must not be negative, and is {quantity}"
    if name in _BYTES and 0 < amount < _LEAST_BYTES:
        digits = re.match(r"[0-9.]*", str(quantity))[0]  # type: ignore[index]  # it matches an empty text too
        meaning = "thousandths of a byte" if str(quantity).endswith("m") else "less than 1 MiB, because memory is in bytes"
        return f"{quantity} is {meaning}: write {digits}Mi or {digits}Gi"
    return None


def _without_limit(name: str, quantity: Any, limit: Any) -> str | None:
    """The message about a request that does not fit its limit."""
    is_fixed = "/" in name or name.startswith(_PAGES)
    if limit is None:
        return f"must be in limits: Kubernetes gives {name} only with a limit; write limits: {{{name}: {quantity}}}" if is_fixed else None
    asked, most = amount_of(quantity), amount_of(limit)
    if asked is None or most is None or asked == most or (asked < most and not is_fixed):
        return None
    return f"must {'equal' if is_fixed else 'not be more than'} the limit, {limit}, not {quantity}"
