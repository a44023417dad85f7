"""Kubernetes resource quantities, as the API server takes them in a custom resource: a whole number or text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from math import ceil
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_QUANTITY = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
MAX_QUANTITY_LENGTH = 64


def _quantity(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError(f'must be a whole number or text, such as 4, 500m or 16Gi: write "{value}", in quotes')
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be a quantity, such as 4, 500m or 16Gi")
    if isinstance(value, str) and (len(value) > MAX_QUANTITY_LENGTH or not _QUANTITY.fullmatch(value)):
        raise ValueError(f"must be a quantity, such as 4, 500m or 16Gi, not {value[:40]!r}")
    return value


Quantity = Annotated[
    str | int, BeforeValidator(_quantity), WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": MAX_QUANTITY_LENGTH})
]
"""`resource.Quantity`. A fraction must be text, because the int-or-string of a custom resource does not allow fractions."""

_UNITS: Mapping[str, Decimal] = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("num", -3)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_MIB = 1 << 20
_PARTS = re.compile(r"(?P<number>.*?)(?P<unit>[KMGTPE]i|[numkMGTPE])?")


def with_more_mib(quantity: Quantity, mib: int) -> str:
    """An amount of memory and so many MiB more, rounded up to whole MiB."""
    match = _PARTS.fullmatch(str(quantity))
    assert match is not None
    amount = Decimal(match["number"]) * _UNITS[match["unit"] or ""]
    return f"{ceil(amount / _MIB) + mib}Mi"
