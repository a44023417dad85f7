"""TF_CONFIG: the members of a TensorFlow world, and which of them this replica is.

TensorFlow's own reader is `tf.distribute.cluster_resolver.TFConfigClusterResolver`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.api.spec import EVALUATOR, TrainingJobSpec
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
    """The value of TF_CONFIG for one replica.

    Only the TF_CONFIG of an evaluator lists the evaluator. The others would wait for it or count it as a member, while its own
    `multi_worker_util` refuses a task type that the cluster lacks.
    """
    cluster: dict[str, list[str]] = {}
    for member in plan.replicas:
        if member.role == EVALUATOR and replica.role != EVALUATOR:
            continue
        host = addresses.host(member.role, member.index)
        port = addresses.port(member.role, member.index, PORT_NAME)
        cluster.setdefault(member.role, []).append(f"{host}:{port}")
    return json.dumps({"cluster": cluster, "task": {"type": replica.role, "index": replica.index}})


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    return {"TF_CONFIG": tf_config(plan, replica, addresses)}
