"""tf.distribute.ParameterServerStrategy. A chief schedules steps, workers compute them, and parameter servers hold the variables."""

from __future__ import annotations

from collections.abc import Mapping

from muster.api.spec import CHIEF, EVALUATOR, PS, WORKER, TrainingJobSpec
from muster.strategies.base import Addresses, ReplicaPlan, RoleRule, Strategy, WorldPlan
from muster.strategies.tensorflow import EVALUATION, EVALUATOR_RULE, devices_per_worker
from muster.strategies.tf_config import LOCAL_REMARK, MEASURED, PORTS, TENSORFLOW, tf_config
from muster_contract.strategy import RoleRuntime, StrategyRuntime


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    # Source: TensorFlow's parameter server guide. Without it, a call to a worker that restarts hangs instead of failing.
    return {"TF_CONFIG": tf_config(plan, replica, addresses), "GRPC_FAIL_FAST": "use_caller"}


SERVER = RoleRuntime(program="muster_trainer.tensorflow.server:serve")

# Training is asynchronous, so no replica waits for a broken worker. The coordinator's task type is `chief`. The loss of a parameter server
# loses variables, and only the chief can restore them. Workers and the chief restart alone. A step belongs to one worker, so no devices
# share its batch.
PARAMETER_SERVER = Strategy(
    runtime=StrategyRuntime(
        "ParameterServer",
        TENSORFLOW,
        engine="muster_trainer.tensorflow.parameter_server:ParameterServer",
        roles={WORKER: SERVER, PS: SERVER, EVALUATOR: EVALUATION},
    ),
    roles={
        CHIEF: RoleRule(maximum=1, single_process=True, ports=PORTS, decides_success=True, restarts_with=frozenset()),
        WORKER: RoleRule(single_process=True, ports=PORTS, restarts_with=frozenset()),
        PS: RoleRule(single_process=True, ports=PORTS, restarts_with=frozenset({CHIEF})),
        EVALUATOR: EVALUATOR_RULE,
    },
    environment=environment,
    options=frozenset({"loop"}),
    is_synchronous=lambda spec: False,
    data_parallel=devices_per_worker,
    measured=MEASURED,
    local_remark=LOCAL_REMARK,
)
