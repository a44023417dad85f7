"""`python -m muster.kubernetes`: the operator. Its configuration file is named by MUSTER_CONFIG; docs/install.md describes it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

from kubernetes.aio.config import ConfigException

from muster.api.text import printable
from muster.kubernetes.configuration import Configuration, ConfigurationError, place_of, read_configuration
from muster.kubernetes.gateway import connected
from muster.kubernetes.operator import Operator

MISCONFIGURED = 2
SUPERSEDED = 3
COLLECTIONS = (20_000, 20, 20)
"""Thresholds of the garbage collector: little here is in cycles, and by Python's own it looks for them through every few answers."""


class OneLine(logging.Formatter):
    """One line for each record, tracebacks included: no text from a pod can forge a line of its own, or reach a terminal raw."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


async def _serve(configuration: Configuration) -> int:
    serving = asyncio.current_task()
    assert serving is not None
    # Until kopf runs, and takes the signal over, there is nothing to end with care.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    async with connected(tuple(configuration.namespaces), policies=configuration.network_policy.enabled) as gateway:
        operator = Operator(configuration, place_of(os.environ), gateway)
        try:
            await operator.run()
        except asyncio.CancelledError:
            return 0
        return SUPERSEDED if operator.superseded else 0


def main() -> int:
    """Runs until it is told to end. The exit code: 0, 2 (it cannot run as configured), 3 (another operator leads)."""
    try:
        configuration = read_configuration(os.environ)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return MISCONFIGURED
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=configuration.log_level.upper(), handlers=[handler])
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    try:
        return asyncio.run(_serve(configuration))
    except (OSError, ConfigException) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        return MISCONFIGURED


if __name__ == "__main__":
    sys.exit(main())
