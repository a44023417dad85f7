"""The environment of every replica of every strategy, written by hand from the rules of docs/architecture/processes.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.api.spec import CHIEF, EVALUATOR, PS, WORKER, TrainingJobSpec
from muster.render.addresses import ClusterAddresses
from muster.render.environment import world_environment
from muster.strategies.base import RestartScope, RoleRule, Strategy
from muster.strategies.registry import STRATEGIES, strategy_of
from muster_contract.strategy import Framework, StrategyRuntime

W = ["worker-0.job.ns.svc:2222", "worker-1.job.ns.svc:2222"]
CHIEFS, SERVERS, EVALUATORS = ["chief-0.job.ns.svc:2222"], ["ps-0.job.ns.svc:2222"], ["evaluator-0.job.ns.svc:2222"]


def spec_of(strategy: str, roles: dict[str, Any], **more: Any) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate({"strategy": strategy, "trainer": {"task": "digits"}, "roles": roles, **more})


def environments(spec: TrainingJobSpec) -> dict[str, dict[str, str]]:
    """The environments by role-index, in rank order."""
    strategy = strategy_of(spec.strategy)
    plan = strategy.plan(spec)
    addresses = ClusterAddresses("job", "ns")
    return {f"{each.role}-{each.index}": dict(strategy.environment(spec, plan, each, addresses)) for each in plan.replicas}


def first_ranks(spec: TrainingJobSpec) -> dict[str, str | None]:
    """The variable MUSTER_FIRST_RANK of each replica, by role-index."""
    strategy = strategy_of(spec.strategy)
    plan = strategy.plan(spec)
    addresses = ClusterAddresses("job", "ns")
    return {
        f"{each.role}-{each.index}": world_environment(spec, each, strategy=strategy, plan=plan, attempt=0, addresses=addresses).get(
            "MUSTER_FIRST_RANK"
        )
        for each in plan.replicas
    }


def tf_configs(spec: TrainingJobSpec) -> dict[str, Any]:
    return {name: json.loads(env["TF_CONFIG"]) for name, env in environments(spec).items()}


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored", "CentralStorage"])
def test_a_strategy_of_one_machine_has_no_framework_environment_and_no_port(strategy: str) -> None:
    spec = spec_of(strategy, {"worker": {"resources": {"limits": {"nvidia.com/gpu": 4}}}})
    assert environments(spec) == {"worker-0": {}}
    [replica] = strategy_of(spec.strategy).plan(spec).replicas
    assert (replica.processes, replica.first_rank, dict(replica.ports)) == (1, 0, {})


def test_workers_of_multi_worker_mirrored_get_the_cluster_and_their_index() -> None:
    assert tf_configs(spec_of("MultiWorkerMirrored", {"worker": {"replicas": 2}})) == {
        "worker-0": {"cluster": {"worker": W}, "task": {"type": "worker", "index": 0}},
        "worker-1": {"cluster": {"worker": W}, "task": {"type": "worker", "index": 1}},
    }


def test_a_single_worker_of_multi_worker_mirrored_has_a_cluster_of_one() -> None:
    assert tf_configs(spec_of("MultiWorkerMirrored", {})) == {
        "worker-0": {"cluster": {"worker": W[:1]}, "task": {"type": "worker", "index": 0}}
    }


def test_only_the_cluster_of_the_evaluator_contains_the_evaluator() -> None:
    spec = spec_of("MultiWorkerMirrored", {"worker": {"replicas": 2}, "evaluator": {}})
    assert tf_configs(spec) == {
        "worker-0": {"cluster": {"worker": W}, "task": {"type": "worker", "index": 0}},
        "worker-1": {"cluster": {"worker": W}, "task": {"type": "worker", "index": 1}},
        "evaluator-0": {"cluster": {"worker": W, "evaluator": EVALUATORS}, "task": {"type": "evaluator", "index": 0}},
    }
    assert strategy_of(spec.strategy).plan(spec).size == 2


@pytest.mark.parametrize(("lost", "hosts"), [(0, ["worker-2", "worker-1"]), (1, ["worker-0", "worker-2"])])
def test_a_spare_has_the_place_of_the_lost_worker_in_tf_config(lost: int, hosts: list[str]) -> None:
    spec = spec_of("MultiWorkerMirrored", {"worker": {"replicas": 2}, "evaluator": {}}, recovery={"spares": 1})
    strategy, members = strategy_of(spec.strategy), [*((WORKER, int(host[-1])) for host in hosts), (EVALUATOR, 0)]
    plan = strategy.pool(spec).arranged(members)
    configs = [json.loads(strategy.environment(spec, plan, each, ClusterAddresses("job", "ns"))["TF_CONFIG"]) for each in plan.replicas]
    addresses = [f"{host}.job.ns.svc:2222" for host in hosts]
    assert [each["cluster"]["worker"] for each in configs] == [addresses] * 3
    assert [each["task"] for each in configs] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "evaluator", "index": 0},
    ]
    assert plan.replicas[lost].index == 2
    assert (plan.replicas[lost].first_rank, plan.size) == (lost, 2)


def test_the_coordinator_of_a_parameter_server_job_is_its_chief() -> None:
    spec = spec_of("ParameterServer", {"chief": {}, "worker": {"replicas": 2}, "ps": {}, "evaluator": {}})
    cluster = {"chief": CHIEFS, "worker": W, "ps": SERVERS}
    assert tf_configs(spec) == {
        "chief-0": {"cluster": cluster, "task": {"type": "chief", "index": 0}},
        "worker-0": {"cluster": cluster, "task": {"type": "worker", "index": 0}},
        "worker-1": {"cluster": cluster, "task": {"type": "worker", "index": 1}},
        "ps-0": {"cluster": cluster, "task": {"type": "ps", "index": 0}},
        "evaluator-0": {"cluster": {**cluster, "evaluator": EVALUATORS}, "task": {"type": "evaluator", "index": 0}},
    }
    assert {env["GRPC_FAIL_FAST"] for env in environments(spec).values()} == {"use_caller"}


def test_the_hosts_of_a_tpu_slice_get_the_variables_of_gke() -> None:
    tpu = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}
    spec = spec_of("TPU", {"worker": {"replicas": 2}}, options={"tpu": tpu})
    shared = {
        "TPU_WORKER_HOSTNAMES": "worker-0.job.ns.svc,worker-1.job.ns.svc",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://worker-0.job.ns.svc:8470,grpc://worker-1.job.ns.svc:8470",
    }
    assert environments(spec) == {"worker-0": {"TPU_WORKER_ID": "0", **shared}, "worker-1": {"TPU_WORKER_ID": "1", **shared}}
    placement = strategy_of(spec.strategy).placement(spec, WORKER)
    assert dict(placement.node_selector) == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert dict(placement.limits) == {"google.com/tpu": "4"}


def test_a_tpu_slice_of_one_host_is_local() -> None:
    spec = spec_of("TPU", {}, options={"tpu": {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}})
    assert environments(spec) == {"worker-0": {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "worker-0.job.ns.svc", "TPU_NAME": "local"}}
    assert dict(strategy_of(spec.strategy).placement(spec, WORKER).limits) == {"google.com/tpu": "8"}


@pytest.mark.parametrize("strategy", ["DDP", "FSDP", "TensorParallel", "Pipeline"])
def test_a_pytorch_replica_runs_a_process_for_each_of_its_gpus(strategy: str) -> None:
    spec = spec_of(strategy, {"worker": {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "16"}}}})
    shared = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "worker-0.job.ns.svc",
        "PET_MASTER_PORT": "29500",
        "MASTER_ADDR": "worker-0.job.ns.svc",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "8",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    assert environments(spec) == {
        "worker-0": {**shared, "PET_NODE_RANK": "0"},
        "worker-1": {**shared, "PET_NODE_RANK": "1"},
    }


def test_rank_is_set_if_a_replica_runs_one_process() -> None:
    envs = environments(spec_of("DDP", {"worker": {"replicas": 3}}))
    assert [(env["RANK"], env["WORLD_SIZE"], env["PET_NPROC_PER_NODE"]) for env in envs.values()] == [
        ("0", "3", "1"),
        ("1", "3", "1"),
        ("2", "3", "1"),
    ]


def test_a_jax_replica_runs_one_process_for_all_of_its_gpus() -> None:
    spec = spec_of("JAX", {"worker": {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": "4"}}}})
    shared = {"JAX_COORDINATOR_ADDRESS": "worker-0.job.ns.svc:8476", "JAX_NUM_PROCESSES": "2"}
    assert environments(spec) == {
        "worker-0": {**shared, "JAX_PROCESS_ID": "0"},
        "worker-1": {**shared, "JAX_PROCESS_ID": "1"},
    }
    assert strategy_of("JAX").data_parallel(spec) == 8


def test_the_evaluator_of_a_jax_job_is_outside_the_world() -> None:
    variables = environments(spec_of("JAX", {"worker": {"replicas": 2}, "evaluator": {}}))
    assert variables["evaluator-0"] == {}
    assert variables["worker-1"]["JAX_NUM_PROCESSES"] == "2"


def test_processes_per_replica_overrule_the_number_of_gpus() -> None:
    worker = {"replicas": 2, "processesPerReplica": 2, "resources": {"limits": {"amd.com/gpu": 8}}}
    envs = environments(spec_of("DDP", {"worker": worker}))
    assert [(env["PET_NPROC_PER_NODE"], env["WORLD_SIZE"]) for env in envs.values()] == [("2", "4"), ("2", "4")]


def test_gpus_of_the_template_replace_the_gpus_of_the_role() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}}
    spec = spec_of("DDP", {"worker": {"template": template, "resources": {"limits": {"nvidia.com/gpu": 8}}}})
    assert strategy_of(spec.strategy).plan(spec).size == 2


def test_the_ranks_of_rpc_start_with_the_chief_and_end_with_the_servers() -> None:
    worker = {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    shared = {
        "PET_NNODES": "4",
        "PET_MASTER_ADDR": "chief-0.job.ns.svc",
        "PET_MASTER_PORT": "29500",
        "MASTER_ADDR": "chief-0.job.ns.svc",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "6",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    assert environments(spec_of("RPC", {"ps": {}, "worker": worker, "chief": {}})) == {
        "chief-0": {**shared, "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0", "RANK": "0"},
        "worker-0": {**shared, "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1"},
        "worker-1": {**shared, "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "2"},
        "ps-0": {**shared, "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "3", "RANK": "5"},
    }


def test_required_roles_of_a_strategy_exist_by_default() -> None:
    assert list(environments(spec_of("ParameterServer", {}))) == ["chief-0", "worker-0", "ps-0"]
    assert list(environments(spec_of("RPC", {}))) == ["chief-0", "worker-0", "ps-0"]


TABLE = {
    # strategy: framework, roles, synchronous, elastic, decisive role, restarts with a broken worker
    "OneDevice": ("TensorFlow", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "Mirrored": ("TensorFlow", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "CentralStorage": ("TensorFlow", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "MultiWorkerMirrored": ("TensorFlow", "worker evaluator", True, False, "worker", RestartScope.WHOLE_WORLD),
    "ParameterServer": ("TensorFlow", "chief worker ps evaluator", False, False, "chief", frozenset()),
    "TPU": ("TensorFlow", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "DDP": ("PyTorch", "worker", True, True, "worker", RestartScope.WHOLE_WORLD),
    "FSDP": ("PyTorch", "worker", True, True, "worker", RestartScope.WHOLE_WORLD),
    "TensorParallel": ("PyTorch", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "Pipeline": ("PyTorch", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "RPC": ("PyTorch", "chief worker ps", False, False, "chief", RestartScope.WHOLE_WORLD),
    "JAX": ("JAX", "worker evaluator", True, True, "worker", RestartScope.WHOLE_WORLD),
    "Ray": ("Ray", "head worker", True, False, "head", RestartScope.WHOLE_WORLD),
    "Spark": ("Spark", "driver executor", True, False, "driver", RestartScope.WHOLE_WORLD),
    "Horovod": ("Horovod", "worker", True, False, "worker", RestartScope.WHOLE_WORLD),
    "MPI": ("MPI", "launcher worker", True, False, "launcher", RestartScope.WHOLE_WORLD),
}


def test_the_registry_has_every_strategy_of_the_design() -> None:
    registered = {
        strategy.name: (
            strategy.framework.name,
            " ".join(role for role in strategy.roles),
            strategy.is_synchronous(spec_of(strategy.name, {})),
            strategy.elastic,
            strategy.decisive,
            strategy.restarts_with(WORKER),
        )
        for strategy in STRATEGIES.values()
    }
    assert registered == TABLE
    frameworks = {strategy.framework.name for strategy in STRATEGIES.values()}
    assert frameworks == {"Horovod", "JAX", "MPI", "PyTorch", "Ray", "Spark", "TensorFlow"}


def test_a_lost_parameter_server_restarts_the_chief_and_a_lost_chief_no_role() -> None:
    strategy = strategy_of(spec_of("ParameterServer", {}).strategy)
    assert strategy.restarts_with(PS) == {CHIEF}
    assert strategy.restarts_with(CHIEF) == frozenset()


@pytest.mark.parametrize("strategy", ["MultiWorkerMirrored", "ParameterServer", "JAX"])
def test_a_broken_evaluator_restarts_alone(strategy: str) -> None:
    assert strategy_of(spec_of(strategy, {}).strategy).restarts_with(EVALUATOR) == frozenset()


def test_ranks_are_global_for_every_strategy() -> None:
    gpus = {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    assert first_ranks(spec_of("DDP", {"worker": gpus})) == {"worker-0": "0", "worker-1": "2"}
    assert first_ranks(spec_of("JAX", {"worker": gpus})) == {"worker-0": "0", "worker-1": "1"}
    rpc = first_ranks(spec_of("RPC", {"worker": gpus}))
    assert rpc == {"chief-0": "0", "worker-0": "1", "worker-1": "3", "ps-0": "5"}
    servers = first_ranks(spec_of("ParameterServer", {"worker": {"replicas": 2}, "evaluator": {}}))
    assert servers == {"chief-0": "0", "worker-0": "1", "worker-1": "2", "ps-0": "3", "evaluator-0": None}


def test_ranks_are_global_for_a_strategy_that_sets_no_environment() -> None:
    descriptor = Strategy(
        runtime=StrategyRuntime("Own", Framework("Own", package="own")),
        roles={"driver": RoleRule(maximum=1, single_process=True, decides_success=True), "worker": RoleRule()},
        data_parallel=lambda spec: 1,
    )
    spec = spec_of("Own", {"worker": {"replicas": 2, "processesPerReplica": 2}})
    plan = descriptor.plan(spec)
    addresses = ClusterAddresses("job", "ns")
    environments = [world_environment(spec, each, strategy=descriptor, plan=plan, attempt=0, addresses=addresses) for each in plan.replicas]
    assert [(each["MUSTER_FIRST_RANK"], each["MUSTER_PROCESSES"]) for each in environments] == [("0", "1"), ("1", "2"), ("3", "2")]


LAUNCHED = Strategy(
    runtime=StrategyRuntime("Own", Framework("Own", package="own")),
    roles={
        "launcher": RoleRule(maximum=1, single_process=True, ranked=False, decides_success=True, ports={"control": 7000}),
        "worker": RoleRule(slots=True, ports={"daemon": 7001}),
    },
    first_ports={"meeting": 7002},
    data_parallel=lambda spec: 1,
)
"""A launcher without ranks starts the ranks of its workers through one daemon on each."""


def test_a_launcher_has_no_rank_and_the_world_meets_at_the_first_worker() -> None:
    spec = spec_of("Own", {"worker": {"replicas": 2, "processesPerReplica": 3}})
    plan = LAUNCHED.plan(spec)
    addresses = ClusterAddresses("job", "ns")
    assert plan.size == 6
    assert plan.size_of([("launcher", 0), ("worker", 1)]) == 3
    assert plan.first.role == "worker"
    assert "meeting" in plan.first.ports
    part = plan.part([("launcher", 0), ("worker", 1)])
    assert [(each.role, each.index, each.first_rank) for each in part.replicas] == [("launcher", 0, None), ("worker", 1, 0)]
    assert "meeting" in part.first.ports
    found = [world_environment(spec, each, strategy=LAUNCHED, plan=plan, attempt=0, addresses=_Ports(addresses)) for each in plan.replicas]
    assert [(each.get("MUSTER_FIRST_RANK"), each["MUSTER_PROCESSES"]) for each in found] == [(None, "1"), ("0", "1"), ("3", "1")]
    assert {each["MUSTER_WORLD_ADDRESS"] for each in found} == {"worker-0.job.ns.svc:7001"}


class _Ports:
    """The addresses of a cluster, with the ports of LAUNCHED, which is not installed."""

    def __init__(self, addresses: ClusterAddresses) -> None:
        self.host = addresses.host

    def port(self, role: str, index: int, name: str) -> int:
        return LAUNCHED.ports[name]
