"""The option `--price`: prices of a device-hour, for what a measured job costs."""

from __future__ import annotations

import math
from typing import Any

import click

Prices = tuple[tuple[str, float], ...]
"""Names, such as those of capacity classes, with their prices. The name is empty if there is none."""
HIGHEST = 1e9


class Price(click.ParamType):
    """A price, or NAME=PRICE."""

    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        name, _, text = str(value).rpartition("=")
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not 0 <= price <= HIGHEST:
            self.fail(f"{value!r} is no price; write a number from 0 to 1e9, such as 3.2, or spot=1.1", param, ctx)
        return name, price


prices_option = click.option(
    "--price",
    "prices",
    type=Price(),
    multiple=True,
    metavar="[NAME=]PRICE",
    help="Price of a device-hour, for the cost. With several, such as spot=1.1 and on-demand=3.2, a column for each.",
)
