"""Options of the whole test suite."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Explain failed assertions of the modules that tests share.
pytest.register_assert_rewrite("tests.support", "tests.chaos", "tests.cluster.faults", "tests.local.proofs")


# `muster run` leaves signals alone that it ignores since its start. The tests send them also if their own shell has them ignored.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)


if _mutant := os.environ.get("MUSTER_MUTANT"):  # `make mutants` asks for it
    from tests.mutants.mutants import plant

    plant(_mutant)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Write golden files anew from the output; read the difference before it is committed."
    )


# How long an example takes says nothing on a machine that others use too.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")
