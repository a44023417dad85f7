"""python -m tests.cluster.images: builds the images for tests and prints their names, one a line."""

import argparse
import sys
from collections.abc import Sequence

from ..harness import engine as engines
from ..harness.cluster import Cluster
from ..harness.errors import HarnessError
from ..harness.places import Places
from ..harness.progress import step
from . import build


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds; 1 and a message where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.images", description="Muster's images, for tests.")
    parser.add_argument("target", nargs="*", metavar="TARGET", help=f"{', '.join(build.TARGETS)} (default: all)")
    parser.add_argument("--load", action="store_true", help="put them into every worker of the cluster as well")
    options = parser.parse_args(arguments)
    places = Places.default()
    try:
        with places.locked():
            engine = engines.ensure(places)
        images = build.ensure(places, engine, options.target or build.TARGETS)
        cluster = Cluster.attached(places, engine)
        if options.load:
            for image in images.values():
                with step(f"putting {image} into every worker"):
                    cluster.load_image(image)
                    cluster.forget_older_images(image)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*images.values(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
