"""TF_CONFIG: who the members of a TensorFlow world are, and which of them reads this.

TensorFlow's own reader is `tf.distribute.cluster_resolver.TFConfigClusterResolver`.
"""

from __future__ import annotations

import json

from muster.api.spec import RoleName
from muster.strategies.base import Addresses, ReplicaPlan, WorldPlan

PORT_NAME = "tensorflow"
PORT = 2222


def tf_config(plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> str:
    """The value of TF_CONFIG for one replica.

    The evaluator stands in the cluster of its own TF_CONFIG alone: the others would wait for it or count it as a member, while its own
    `multi_worker_util` refuses a task type that the cluster lacks.
    """
    cluster: dict[str, list[str]] = {}
    for member in plan.replicas:
        if member.role is RoleName.EVALUATOR and replica.role is not RoleName.EVALUATOR:
            continue
        host = addresses.host(member.role, member.index)
        port = addresses.port(member.role, member.index, PORT_NAME)
        cluster.setdefault(member.role.value, []).append(f"{host}:{port}")
    return json.dumps({"cluster": cluster, "task": {"type": replica.role.value, "index": replica.index}})
