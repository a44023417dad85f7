"""The option `--price`: prices of a device-hour, for what a measured job costs."""

from __future__ import annotations

import math

import click

Prices = tuple[tuple[str, float], ...]
"""Names, such as those of capacity classes, with their prices. The name is empty if there is none."""
HIGHEST = 1e9


def _prices(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> Prices:
    return tuple(_price(text) for text in texts)


def _price(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not 0 <= price <= HIGHEST:
        raise click.BadParameter(f"{text!r} is no price; write a number from 0 to 1e9, such as 3.2, or spot=1.1")
    return name, price


prices_option = click.option(
    "--price",
    "prices",
    multiple=True,
    callback=_prices,
    metavar="[NAME=]PRICE",
    help="Price of a device-hour, for the cost. With several, such as spot=1.1 and on-demand=3.2, a column for each.",
)
