"""`python -m muster.operator`: the operator. MUSTER_CONFIG names its configuration file, which docs/install.md describes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

from kubernetes.aio.config import ConfigException

from muster.lifecycle.tracing import Tracing
from muster.operator.configuration import Configuration, ConfigurationError, operator_pod, read_configuration
from muster.operator.operator import assembled
from muster.operator.webhook import SecretError, Webhook, webhook_of
from muster.strategies.registry import REFUSED
from muster.tools.tracing.otlp import traces
from muster_contract.text import printable

MISCONFIGURED = 2
SUPERSEDED = 3
COLLECTIONS = (20_000, 20, 20)
"""Thresholds of the garbage collector. Few objects are in cycles, and with the default thresholds it would run every few answers."""


class OneLine(logging.Formatter):
    """Writes each record, with its traceback, as one line of printable text. So text from a pod cannot forge log lines or control a
    terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


async def _serve(configuration: Configuration, tracing: Tracing | None, webhook: Webhook | None) -> int:
    serving = asyncio.current_task()
    assert serving is not None
    # kopf handles the signal once it runs. Until then, nothing needs an orderly end.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    async with assembled(configuration, operator_pod(os.environ), tracing=tracing, webhook=webhook) as operator:
        try:
            await operator.run()
        except asyncio.CancelledError:
            return 0
        return SUPERSEDED if operator.superseded else 0


def main() -> int:
    """Runs until a signal. Returns the exit code: 0, 2 (the configuration does not work) or 3 (another operator leads)."""
    try:
        configuration = read_configuration(os.environ)
        webhook = webhook_of(configuration.webhook.url, os.environ)
    except (ConfigurationError, SecretError) as error:
        print(error, file=sys.stderr)
        return MISCONFIGURED
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=configuration.log_level.upper(), handlers=[handler])
    for reason in REFUSED:
        logging.getLogger("muster.strategies").error(reason)
    log = logging.getLogger("muster.tracing")
    with traces(os.environ, refused=log.error, lost=log.warning) as tracing:
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        try:
            return asyncio.run(_serve(configuration, tracing, webhook))
        except (OSError, ConfigException) as error:
            print(f"cannot start: {error}", file=sys.stderr)
            return MISCONFIGURED


if __name__ == "__main__":
    sys.exit(main())
