"""Variables that are too long for any program, in the process that needs them."""

from __future__ import annotations

import os

from muster_contract.large_variables import LONGEST, size, unpack


def unpack_here() -> None:
    """Makes plain variables of the packed ones. Raises BadConfiguration.

    Programs that this process starts do not get those that are too long, because Linux would start no such program.
    """
    for name, value in unpack(os.environ).items():
        if os.environ.get(name) != value:
            os.environ[name] = value
            if size(name, value) > LONGEST:
                os.unsetenv(name)
