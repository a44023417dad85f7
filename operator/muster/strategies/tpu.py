"""TPUStrategy on the TPU slices of Google Kubernetes Engine: one worker per host of a slice."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from muster.api.problems import Problem
from muster.api.spec import WORKER, RoleName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, Placement, ReplicaPlan, RoleRule, Strategy, WorldPlan, worker_of
from muster.strategies.tf_config import MEASURED, TENSORFLOW
from muster_contract.options import Loop
from muster_contract.strategy import RoleRuntime, StrategyRuntime

PORT_NAME = "tpu"
PORT = 8470
"""The port of a host's TPU runtime, which is the default of TensorFlow's TPU client."""
MOST_CHIPS_PER_HOST = 8


def chips(topology: str) -> int:
    """Chips of a slice: 2x4 has 8, 2x2x2 has 8."""
    return prod(int(side) for side in topology.split("x"))


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """Names of variables and labels: GKE's documentation of TPU workloads, and `tensorflow/python/tpu/client/client.py`.

    GKE itself injects TPU_WORKER_ID and TPU_WORKER_HOSTNAMES only into indexed Jobs, so they are set here. With several hosts
    TPUClusterResolver reads the runtimes' addresses from KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS. With one, TPU_NAME=local means its own chips.
    """
    hosts = [addresses.host(member.role, member.index) for member in plan.replicas]
    slice_env = {"TPU_WORKER_ID": str(replica.index), "TPU_WORKER_HOSTNAMES": ",".join(hosts)}
    if plan.size == 1:
        return {**slice_env, "TPU_NAME": "local"}
    ports = [addresses.port(member.role, member.index, PORT_NAME) for member in plan.replicas]
    endpoints = ",".join(f"grpc://{host}:{port}" for host, port in zip(hosts, ports, strict=True))
    return {**slice_env, "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": endpoints}


def placement(spec: TrainingJobSpec, role: RoleName) -> Placement:
    """The nodes of the slice. The chips of a host are the chips of the topology divided by the workers, unless the role's limits set
    them."""
    tpu = spec.options.tpu
    if tpu is None or tpu.accelerator is None or tpu.topology is None:
        return Placement()
    worker = worker_of(spec)
    named = accelerators.limits(worker).get(accelerators.TPU)
    per_host = str(named) if named is not None else str(chips(tpu.topology) // worker.replicas)
    return Placement(
        node_selector={"cloud.google.com/gke-tpu-accelerator": tpu.accelerator, "cloud.google.com/gke-tpu-topology": tpu.topology},
        limits={accelerators.TPU: per_host},
    )


def data_parallel(spec: TrainingJobSpec) -> int:
    tpu = spec.options.tpu
    return chips(tpu.topology) if tpu and tpu.topology else worker_of(spec).replicas


def problems(strategy: Strategy, spec: TrainingJobSpec) -> list[Problem]:
    errors = []
    if spec.options.loop is Loop.FIT:
        errors.append(Problem("spec.options.loop", "Keras fit is not supported on a TPU; write Custom, or leave it out"))
    tpu = spec.options.tpu
    if tpu is None or tpu.accelerator is None:
        errors.append(Problem("spec.options.tpu.accelerator", "TPU needs the type of the slice; write tpu-v5-lite-podslice, for example"))
    if tpu is None or tpu.topology is None:
        errors.append(Problem("spec.options.tpu.topology", "TPU needs the shape of the slice; write 2x4, for example"))
    else:
        errors += _chip_problems(spec, chips(tpu.topology))
    return errors


def _chip_problems(spec: TrainingJobSpec, total: int) -> list[Problem]:
    workers = worker_of(spec).replicas
    if total == 0 or total % workers:
        message = f"{total} chips cannot be divided among {workers} workers; write a number of workers that divides them"
        return [Problem("spec.roles.worker.replicas", message)]
    named = accelerators.limits(worker_of(spec)).get(accelerators.TPU)
    if named is not None and accelerators.whole(named) != total // workers:
        message = f"{total} chips over {workers} workers are {total // workers} each, not {named}; leave it out"
        return [Problem(f"spec.roles.worker.resources.limits[{accelerators.TPU}]", message)]
    if total // workers > MOST_CHIPS_PER_HOST:
        message = f"no host has {total // workers} TPU chips; write at least {-(-total // MOST_CHIPS_PER_HOST)}"
        return [Problem("spec.roles.worker.replicas", message)]
    return []


TPU = Strategy(
    runtime=StrategyRuntime(
        "TPU",
        TENSORFLOW,
        engine="muster_trainer.tensorflow.synchronous:Tpu",
        roles={"worker": RoleRuntime(program="muster_trainer.tensorflow.server:serve_host", first_index=1)},
    ),
    roles={WORKER: RoleRule(single_process=True, ports={PORT_NAME: PORT}, decides_success=True)},
    environment=environment,
    placement=placement,
    options=frozenset({"loop", "tpu"}),
    data_parallel=data_parallel,
    checks=(problems,),
    measured=MEASURED,
)
