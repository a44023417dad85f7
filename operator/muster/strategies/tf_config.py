"""TF_CONFIG: the members of a TensorFlow world, and which of them this replica is.

TensorFlow's own reader is `tf.distribute.cluster_resolver.TFConfigClusterResolver`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from muster.api.spec import EVALUATOR, RoleName, TrainingJobSpec
from muster.strategies.base import Addresses, Measured, ReplicaPlan, WorldPlan
from muster.strategies.libraries import NCCL_PEER_LOST
from muster_contract.strategy import Framework

PORT_NAME = "tensorflow"
PORT = 2222
PORTS = {PORT_NAME: PORT}
MEASURED = Measured(plain="MultiWorkerMirrored", single="OneDevice")
LOCAL_REMARK = (
    "TensorFlow's servers listen on every network address of this machine, without a password: while the job runs, "
    "anyone who can reach their ports can run programs as you. Use a network that you trust, or close the ports with a "
    "firewall; --ports sets which ports they are"
)

TENSORFLOW = Framework(
    name="TensorFlow",
    package="muster_trainer.tensorflow",
    modules=("tensorflow", "keras"),
    # TensorFlow and gRPC log to stderr from C++. They read these variables when they are imported.
    quiet_environment={"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE", "TF_ENABLE_ONEDNN_OPTS": "0"},
    world_variables=("TF_CONFIG",),
    peer_lost=(
        *NCCL_PEER_LOST,
        r"(?<!\[Errno 104\] )(?<!\[Errno 54\] )Connection reset by peer",
        r"errors_impl\.(UnavailableError|AbortedError|DeadlineExceededError)",
        r"\bUnavailableError\b",
        r"Collective ops is aborted",
        r"stopped sending heartbeats",
        r"^(?=.*(?i:error reported (from|by) )).*(?i:coordination service)",
    ),
)


def tf_config(plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> str:
    """The value of TF_CONFIG for one replica. Its task index is its place in the role: a spare may replace any worker.

    Only the TF_CONFIG of an evaluator lists the evaluator. The others would wait for it or count it as a member, while its own
    `multi_worker_util` refuses a task type that the cluster lacks.
    """
    cluster, places = _cluster(_ClusterKey(plan, addresses), with_evaluator=replica.role == EVALUATOR)
    task = {"type": replica.role, "index": places[replica.role, replica.index]}
    return f'{{"cluster": {cluster}, "task": {json.dumps(task)}}}'


@dataclass(frozen=True, eq=False)
class _ClusterKey:
    """Keys are equal if they have the same plan object, because to compare two plans would cost as much as the cluster."""

    plan: WorldPlan
    addresses: Addresses

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ClusterKey) and self.plan is other.plan and self.addresses == other.addresses

    def __hash__(self) -> int:
        return id(self.plan)


@lru_cache(maxsize=16)
def _cluster(key: _ClusterKey, *, with_evaluator: bool) -> tuple[str, Mapping[tuple[RoleName, int], int]]:
    """The JSON of the cluster, and the place of each member in its role. Both are cached, because they are the same for all replicas, and
    their cost grows with the number of replicas."""
    members: dict[RoleName, list[str]] = {}
    places: dict[tuple[RoleName, int], int] = {}
    for member in key.plan.replicas:
        if member.role == EVALUATOR and not with_evaluator:
            continue
        host = key.addresses.host(member.role, member.index)
        port = key.addresses.port(member.role, member.index, PORT_NAME)
        addresses = members.setdefault(member.role, [])
        places[member.role, member.index] = len(addresses)
        addresses.append(f"{host}:{port}")
    return json.dumps(members), places


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    return {"TF_CONFIG": tf_config(plan, replica, addresses)}
