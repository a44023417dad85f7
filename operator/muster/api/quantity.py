"""Kubernetes resource quantities, as the API server takes them in a custom resource: a whole number or text."""

from __future__ import annotations

import re
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
