"""Creates and deletes the cluster.

If KUBECONFIG names a cluster of the user, that cluster is used and not changed. Otherwise `kind` creates one, on the engine of this machine
or on one of this package. It uses kind's node image if that can be pulled, or else a node image of this package.
"""

import copy
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from . import engine as engines
from . import node_image
from .cluster import NAME, Cluster
from .engine import Engine
from .errors import ClusterError, CommandFailedError
from .machine import has_cgroup_v2, has_sys_resource
from .places import FOLDER, Places
from .process import run
from .programs import Programs
from .progress import say, step

DEFAULT_WORKERS = 2
TOOLS = ("kind", "kubectl", "helm")
CREATE_TIMEOUT = 1200
READY_TIMEOUT = 420
DELETION_TIMEOUT = 900  # on a busy disk, the volumes of the nodes (several GB of small files) take minutes
CONFIG = FOLDER / "kind.yaml"


def up(places: Places, *, workers: int = DEFAULT_WORKERS, own_image: bool = False) -> Cluster:
    """A cluster that is ready: the one of KUBECONFIG, the one that already runs, or a new one.

    Args:
        places: the cache.
        workers: number of nodes besides the control plane. A cluster with another number is replaced.
        own_image: whether to build the node image even if kind's own could be pulled.

    Raises:
        ClusterError: there can be no cluster. The message has the cause and the remedy.
    """
    named = Cluster.named_by_environment(places)
    if named is not None:
        with step(f"checking the cluster of KUBECONFIG={named.kubeconfig}"):
            named.check()
        return named
    if workers < 1:
        raise ClusterError(f"workers: must be at least 1, not {workers}")
    with places.locked():
        engine = engines.ensure(places)
        cluster = Cluster.attached(places, engine)
        if cluster.is_whole(workers):
            say("the cluster is up already")
            return cluster
        if cluster.nodes():
            with places.in_use():
                say("the existing cluster does not match, so it is replaced")
                _delete(cluster)
        image = _image(places, engine, own_image=own_image)
        places.work.mkdir(parents=True, exist_ok=True)
        places.shared.mkdir(exist_ok=True)
        places.shared.chmod(0o777)
        _create(cluster, engine, workers, image=image)
        return cluster


def down(places: Places) -> None:
    """Deletes the cluster, and the engine of this package with everything that it left on the machine. The cache stays. Does nothing if
    there is neither."""
    with places.locked(), places.in_use():
        engine = engines.running()
        if engine is not None:
            cluster = Cluster.attached(places, engine)
            if cluster.nodes():
                with step("deleting the cluster"):
                    _delete(cluster)
            if engine.own:
                _empty(engine)
        if engine is None or engine.own:
            engines.stop(places)
        shutil.rmtree(places.work, ignore_errors=True)


def _image(places: Places, engine: Engine, *, own_image: bool) -> str | None:
    """The node image to use. None selects kind's own. Otherwise it is one of this package, which is built if the engine does not have
    it."""
    programs = Programs(places)
    if not own_image and (not engine.own or (has_sys_resource() and has_cgroup_v2())):
        programs.ensure(name for name in TOOLS if shutil.which(name) is None)
        return None
    image = node_image.name()
    if engine.has_image(image):
        programs.ensure(TOOLS)
        return image
    say("building Kubernetes from Go modules: 15 to 40 minutes on two cores, unless they are cached; it goes on after an interruption")
    node_image.remove_leftovers(places)
    engines.install({"debootstrap": "debootstrap"})
    with ThreadPoolExecutor(max_workers=1) as pool:
        built = pool.submit(programs.ensure, (*node_image.PROGRAMS, *TOOLS))
        with node_image.debian_tree(places) as tree:
            built.result()
            node_image.build(places, engine, programs, debian=tree)
    for old in engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", node_image.REPOSITORY).split():
        if old != image:
            engine.docker("image", "rm", old)
    return image


def _create(cluster: Cluster, engine: Engine, workers: int, *, image: str | None) -> None:
    if not _kind_created(cluster, workers, image=image):
        say("kind's node image cannot be pulled here: building one")
        image = _image(cluster.places, engine, own_image=True)
        _kind_created(cluster, workers, image=image)
    if image is None:
        for node in cluster.nodes():
            cluster.install_guard(node.name)
    with step("waiting for the nodes and the cluster's DNS"):
        deadline = f"--timeout={READY_TIMEOUT}s"
        cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", deadline, timeout=READY_TIMEOUT + 10)
        cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", deadline, timeout=READY_TIMEOUT + 10)


def _kind_created(cluster: Cluster, workers: int, *, image: str | None) -> bool:
    """Creates the nodes with kind. Returns False if kind could not pull its own image, which it uses if `image` is None."""
    places = cluster.places
    command = [cluster.program("kind"), "create", "cluster", "--name", NAME, f"--kubeconfig={places.kubeconfig}", "--wait=0s", "--config=-"]
    if image is not None:
        command += ["--image", image]
    expected = "half a minute" if image else "half a minute, and once as long as its image takes to pull"
    with step(f"kind creates {workers + 1} nodes", expected):
        try:
            run(command, CREATE_TIMEOUT, env=cluster.environment, stdin=_config(workers, places.shared))
        except CommandFailedError as error:
            if image is not None or "failed to pull image" not in error.output:
                raise
            return False
    return True


def _config(workers: int, shared: Path) -> str:
    config = yaml.safe_load(CONFIG.read_text())
    by_role = {node["role"]: node for node in config["nodes"]}
    config["nodes"] = copy.deepcopy([by_role["control-plane"], *[by_role["worker"]] * workers])
    for node in config["nodes"]:
        node["extraMounts"][0]["hostPath"] = str(shared)
    return json.dumps(config)


def _delete(cluster: Cluster) -> None:
    """Deletes the nodes. Thaws frozen nodes first, because a paused container cannot be ended."""
    for node in cluster.nodes():
        if node.state == "paused":
            cluster.unpause_node(node.name)
    command: list[str | Path] = [cluster.program("kind"), "delete", "cluster", "--name", NAME, "--kubeconfig", cluster.kubeconfig]
    run(command, DELETION_TIMEOUT, env=cluster.environment)
    if cluster.kubeconfig.exists() and os.path.samefile(cluster.kubeconfig.parent, cluster.places.work):
        cluster.kubeconfig.unlink()


def _empty(engine: Engine) -> None:
    """Removes the containers of an engine of this package. Its images stay."""
    containers = engine.docker("ps", "--all", "--quiet").split()
    if containers:
        engine.docker("rm", "--force", "--volumes", *containers)
    volumes = engine.docker("volume", "ls", "--quiet").split()
    if volumes:
        engine.docker("volume", "rm", *volumes)
