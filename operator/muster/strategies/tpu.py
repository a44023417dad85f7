"""TPUStrategy on the TPU slices of Google Kubernetes Engine: one worker per host of a slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from muster.api.problems import Problem
from muster.api.spec import RoleName, StrategyName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, Framework, Placement, ReplicaPlan, WorldPlan
from muster.strategies.checks import general_problems, tensorflow_problems
from muster.strategies.traits import WORKERS, Traits, replicas_of

PORT_NAME = "tpu"
PORT = 8470
"""Where a host's TPU runtime listens: the default port of TensorFlow's TPU client."""
MOST_CHIPS_PER_HOST = 8


def chips(topology: str) -> int:
    """Chips of a slice: 2x4 has 8, 2x2x2 has 8."""
    return prod(int(side) for side in topology.split("x"))


@dataclass(frozen=True, kw_only=True)
class Tpu(Traits):
    """Names of variables and labels: GKE's documentation of TPU workloads, and `tensorflow/python/tpu/client/client.py`.

    GKE itself injects TPU_WORKER_ID and TPU_WORKER_HOSTNAMES only into indexed Jobs, so they are set here. With several hosts
    TPUClusterResolver learns the runtimes' addresses from KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS; with one, TPU_NAME=local says where the
    chips are.
    """

    def plan(self, spec: TrainingJobSpec) -> WorldPlan:
        workers = replicas_of(RoleName.WORKER, self.worker(spec).replicas, processes=1, first_rank=0)
        if len(workers) > 1:
            workers = [replace(worker, ports={PORT_NAME: PORT}) for worker in workers]
        return WorldPlan(tuple(workers), size=len(workers))

    def environment(self, spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
        hosts = [addresses.host(member.role, member.index) for member in plan.replicas]
        slice_env = {"TPU_WORKER_ID": str(replica.index), "TPU_WORKER_HOSTNAMES": ",".join(hosts)}
        if plan.size == 1:
            return {**slice_env, "TPU_NAME": "local"}
        ports = [addresses.port(member.role, member.index, PORT_NAME) for member in plan.replicas]
        endpoints = ",".join(f"grpc://{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        return {**slice_env, "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": endpoints}

    def placement(self, spec: TrainingJobSpec, role: RoleName) -> Placement:
        """Nodes of the slice; chips per host are those of the topology shared out over the workers, unless the role's limits name them."""
        tpu = spec.options.tpu
        if tpu is None or tpu.accelerator is None or tpu.topology is None:
            return Placement()
        worker = self.worker(spec)
        named = accelerators.limits(worker).get(accelerators.TPU)
        per_host = str(named) if named is not None else str(chips(tpu.topology) // worker.replicas)
        return Placement(
            node_selector={"cloud.google.com/gke-tpu-accelerator": tpu.accelerator, "cloud.google.com/gke-tpu-topology": tpu.topology},
            limits={accelerators.TPU: per_host},
        )

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        tpu = spec.options.tpu
        return chips(tpu.topology) if tpu and tpu.topology else self.worker(spec).replicas

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        found = general_problems(self, spec, devices=self.data_parallel(spec)) + tensorflow_problems(self, spec)
        if spec.options.loop == "Fit":
            found.append(Problem("spec.options.loop", "nobody has tried Keras fit on a TPU; write Custom, or leave it out"))
        tpu = spec.options.tpu
        if tpu is None or tpu.accelerator is None:
            found.append(Problem("spec.options.tpu.accelerator", "TPU needs the type of the slice; write tpu-v5-lite-podslice, say"))
        if tpu is None or tpu.topology is None:
            found.append(Problem("spec.options.tpu.topology", "TPU needs the shape of the slice; write 2x4, say"))
        else:
            found += self._chip_problems(spec, chips(tpu.topology))
        return found

    def _chip_problems(self, spec: TrainingJobSpec, total: int) -> list[Problem]:
        workers = self.worker(spec).replicas
        if total == 0 or total % workers:
            message = f"{total} chips cannot be shared out over {workers} workers; write a number of workers that divides them"
            return [Problem("spec.roles.worker.replicas", message)]
        named = accelerators.limits(self.worker(spec)).get(accelerators.TPU)
        if named is not None and accelerators.whole(named) != total // workers:
            message = f"{total} chips over {workers} workers are {total // workers} each, not {named}; leave it out"
            return [Problem(f"spec.roles.worker.resources.limits[{accelerators.TPU}]", message)]
        if total // workers > MOST_CHIPS_PER_HOST:
            message = f"no host has {total // workers} TPU chips; write at least {-(-total // MOST_CHIPS_PER_HOST)}"
            return [Problem("spec.roles.worker.replicas", message)]
        return []


TPU = Tpu(
    name=StrategyName.TPU,
    framework=Framework.TENSORFLOW,
    summary="Every core of a TPU slice holds a copy of the model; gradients are summed over the slice's own interconnect at each step.",
    roles=WORKERS,
    options=frozenset({"loop", "tpu"}),
)
