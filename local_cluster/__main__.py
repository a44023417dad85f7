"""python -m local_cluster: manages a kind cluster from a shell. Standard output is for `eval`."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from . import create, installation
from . import engine as engines
from .apiserver import api_server
from .cluster import Cluster
from .errors import ClusterError
from .images import build as build_images
from .places import Places
from .programs import SOURCES, Programs
from .progress import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 1, after a message, if the command fails."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options, Places.default())
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `make cluster-down` removes what was made so far", file=sys.stderr)
        return 130
    return status


def print_exports(cluster: Cluster) -> None:
    """The lines that point a shell's kubectl, helm and docker at a cluster."""
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    if cluster.engine is not None:
        for name, value in cluster.engine.environment.items():
            print(f"export {name}={shlex.quote(value)}")
        if cluster.places.bin.exists():
            print(f"export PATH={shlex.quote(str(cluster.places.bin))}:$PATH")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local_cluster", description="A Kubernetes cluster on this machine, made by kind.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="create the cluster if it does not run, and print the settings for kubectl")
    workers = os.environ.get("MUSTER_CLUSTER_WORKERS", str(create.DEFAULT_WORKERS))
    up.add_argument("--workers", type=int, default=workers, help="nodes beside the control plane (default: MUSTER_CLUSTER_WORKERS, or 2)")
    up.add_argument("--own-image", action="store_true", help="build the node image even if kind's own could be pulled")
    up.add_argument("--muster", action="store_true", help="build Muster of this checkout, and install or upgrade it")
    up.set_defaults(command=_up)
    commands.add_parser("down", help="remove the cluster and its engine; the cache stays").set_defaults(command=_down)
    commands.add_parser("status", help="show the engine and the cluster").set_defaults(command=_status)
    load = commands.add_parser("load", help="load images into every worker")
    load.add_argument("image", nargs="+", help="name of an image, or path of an archive of `docker save`")
    load.set_defaults(command=_load)
    images = commands.add_parser("images", help="build Muster's images from the Dockerfile, and print their names")
    images.add_argument("image", nargs="*", metavar="IMAGE", help=f"{', '.join(build_images.IMAGES)} (default: all)")
    images.add_argument("--load", action="store_true", help="load them into every worker too")
    images.set_defaults(command=_images)
    build = commands.add_parser("build", help="build programs into the cache, and print their paths")
    build.add_argument("program", nargs="+", choices=sorted(name for source in SOURCES for name in source.packages))
    build.set_defaults(command=_build)
    server = commands.add_parser("apiserver", help="run a command beside etcd and kube-apiserver alone, with KUBECONFIG set")
    server.add_argument("--exec", required=True, metavar="CMD", help="the command, for a shell")
    server.set_defaults(command=_apiserver)
    return parser


def _up(options: argparse.Namespace, places: Places) -> int:
    cluster = create.up(places, workers=options.workers, own_image=options.own_image)
    if options.muster:
        with places.in_use():
            installation.ensure(cluster)
    print_exports(cluster)
    return 0


def _down(options: argparse.Namespace, places: Places) -> int:
    create.down(places)
    return 0


def _status(options: argparse.Namespace, places: Places) -> int:
    engine = engines.running()
    if engine is None:
        print("no Docker engine runs, so no cluster does")
        return 1
    print("engine: " + ("the harness's own" if engine.own else "the one of this machine"))
    nodes = Cluster.attached(places, engine).nodes()
    for node in nodes:
        print(f"{node.name}: {node.role}, {node.state}")
    return 0 if nodes else 1


def _load(options: argparse.Namespace, places: Places) -> int:
    engine = engines.running()
    if engine is None:
        raise ClusterError("no cluster runs: run `make cluster`")
    for image in options.image:
        Cluster.attached(places, engine).load_image(image)
        say(f"{image}: in every worker")
    return 0


def _images(options: argparse.Namespace, places: Places) -> int:
    with places.locked():
        engine = engines.ensure(places)
    names = options.image or build_images.IMAGES
    images = installation.put(Cluster.attached(places, engine), names) if options.load else build_images.ensure(places, engine, names)
    print(*images.values(), sep="\n")
    return 0


def _build(options: argparse.Namespace, places: Places) -> int:
    programs = Programs(places)
    programs.ensure(options.program)
    for name in options.program:
        print(programs.path(name))
    return 0


def _apiserver(options: argparse.Namespace, places: Places) -> int:
    with api_server(places) as kubeconfig:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{places.bin}:{os.environ.get('PATH', '')}"}
        return subprocess.run(options.exec, shell=True, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
