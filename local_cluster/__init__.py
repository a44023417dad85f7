"""A Kubernetes cluster for tests: kind on the Docker engine of this machine, or else on an engine and a node image that this package makes.
See local_cluster/README.md."""

from .apiserver import api_server, scheduler_configuration
from .cluster import Cluster, Node
from .create import down, up
from .errors import ClusterError, CommandFailedError, MissingError
from .places import Places
from .process import die_with_parent, running
from .programs import Programs

__all__ = [
    "Cluster",
    "ClusterError",
    "CommandFailedError",
    "MissingError",
    "Node",
    "Places",
    "Programs",
    "api_server",
    "die_with_parent",
    "down",
    "running",
    "scheduler_configuration",
    "up",
]
