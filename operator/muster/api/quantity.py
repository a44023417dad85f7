"""Kubernetes resource quantities, as the API server takes them in a custom resource: a whole number or text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Context, Decimal
from math import ceil
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_QUANTITY = re.compile(
    r"(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:(?P<exponent>[eE][-+]?[0-9]+)|(?P<unit>[numkMGTPE]|[KMGTPE]i))?"
)
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
_LARGEST = Decimal(2**63 - 1)
_WITHOUT_ERRORS = Context(prec=40, traps=[])
_MIB = 1 << 20


def amount_of(quantity: object) -> Decimal | None:
    """The number that a quantity stands for, between -(2**63 - 1) and 2**63 - 1 as in Kubernetes. None if it is not a quantity.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return None
    number = _WITHOUT_ERRORS.create_decimal(match["number"] + (match["exponent"] or ""))  # 1e9999999 is infinite
    return max(-_LARGEST, min(_LARGEST, _WITHOUT_ERRORS.multiply(number, _UNITS[match["unit"] or ""])))


def with_more_mib(quantity: Quantity, mib: int) -> str:
    """An amount of memory and so many MiB more, rounded up to whole MiB."""
    amount = amount_of(quantity)
    assert amount is not None
    return f"{ceil(amount / _MIB) + mib}Mi"
