"""Unpacks environment variables that are longer than Linux accepts, in the process that needs them."""

from __future__ import annotations

import os

from muster_contract.large_variables import LONGEST, size, unpack


def unpack_here() -> None:
    """Replaces packed variables by plain ones, for this process. Raises BadConfiguration.

    Programs that this process starts do not inherit the long ones, because Linux would refuse to start them.
    """
    for name, value in unpack(os.environ).items():
        if os.environ.get(name) != value:
            os.environ[name] = value
            if size(name, value) > LONGEST:
                os.unsetenv(name)
