"""python -m tests.cluster: the test cluster with Muster of this checkout on it; prints what leads a shell there, for `eval`."""

import sys

from . import harness, installation
from .harness.__main__ import print_exports


def main() -> int:
    """Makes or updates both; 1 and a message where that cannot be done."""
    try:
        places = harness.Places.default()
        cluster = harness.up(places)
        with places.in_use():
            installation.ensure(cluster)
    except harness.HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `make cluster-down` removes what was made so far", file=sys.stderr)
        return 130
    print_exports(cluster)
    return 0


if __name__ == "__main__":
    sys.exit(main())
