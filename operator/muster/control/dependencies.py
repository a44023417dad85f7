"""What the reconciler needs: the cluster, the caches, the settings of the installation, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from muster.acceptance.presets import Presets
from muster.admission.job_policy import UNLIMITED, JobPolicy
from muster.api.capacity import Classes
from muster.api.status import NodeNotice, TrainingJobStatus
from muster.channel.reports import Reports
from muster.control.cluster import Cluster
from muster.control.gangs import Gangs
from muster.control.job_store import Store
from muster.control.positions import Positions
from muster.control.queues import Kueue
from muster.kubernetes.objects import Object
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster.lifecycle.tracing import Tracing
from muster.render.defaults import JobDefaults
from muster.render.environment import Coordinator
from muster.render.images import Images


@dataclass(frozen=True)
class Dependencies:
    """`images` are the installation's trainer images. Without a `coordinator`, supervisors send no
    reports."""

    cluster: Cluster
    store: Store
    reports: Reports
    images: Images
    now: Callable[[], datetime]
    defaults: JobDefaults = field(default_factory=JobDefaults)
    presets: Presets = field(default_factory=Presets)
    coordinator: Coordinator | None = None
    job_policy: JobPolicy = UNLIMITED
    policies: bool = False
    """Whether each job gets a network policy."""
    policy: Policy = DEFAULT_POLICY
    gangs: Gangs = field(default_factory=Gangs)
    kueue: Kueue = field(default_factory=Kueue)
    positions: Positions | None = None
    """Positions of jobs in their queues. None if positions are not shown."""
    notices: Callable[[], Mapping[str, NodeNotice] | None] = lambda: None
    """The notices of the cluster's nodes, by node. None if they are unknown."""
    capacity_classes: Callable[[], Mapping[str, str]] = dict
    """The capacity class of each node that has one."""
    classes: Classes = field(default_factory=dict)
    """The capacity classes of the installation."""
    knows_nodes: Callable[[], bool] = lambda: True
    """Whether the capacity classes of the nodes are known."""
    enqueue: Callable[[str], None] = lambda _: None
    """Called with the key of a job that needs another pass now."""
    publish: Callable[[Object], None] = lambda _: None
    """Called with the manifest of each Event."""
    changed: Callable[[TrainingJobStatus, TrainingJobStatus], None] = lambda old, new: None
    """Called with the status of a job before and after each write."""
    tracing: Tracing | None = None
    """Sends the traces of jobs. None if no traces are sent."""
