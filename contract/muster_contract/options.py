"""Options of strategies (`spec.options`), with their limits and rules. The API, the CRD and the trainer derive their options from these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

from muster_contract.wire import document, wire_field

MAX_REPLICAS = 4096
"""Replicas of a role."""
MAX_DEVICE_NAME = 253
"""Characters of the name of a device."""


class Loop(StrEnum):
    CUSTOM = "Custom"
    FIT = "Fit"


class GradientCompression(StrEnum):
    NONE = "None"
    FP16 = "FP16"
    BF16 = "BF16"


class Schedule(StrEnum):
    GPIPE = "GPipe"
    ONE_FORWARD_ONE_BACKWARD = "1F1B"
    PIPEDREAM = "PipeDream"

    @property
    def is_synchronous(self) -> bool:
        """Whether all stages apply an update at the same step."""
        return self is not Schedule.PIPEDREAM


class Cut(StrEnum):
    COST = "Cost"
    EVEN = "Even"


@document
class PipelineOptions:
    """Options of the Pipeline strategy."""

    stages: int | None = wire_field(
        default=None,
        minimum=1,
        maximum=1024,
        doc="Number of pipeline stages: one in each process of a row, which is the default.",
    )
    micro_batches: int | None = wire_field(
        default=None,
        minimum=1,
        maximum=65536,
        doc="Number of micro-batches that a batch is divided into. Default: the number of stages.",
    )
    schedule: Schedule = wire_field(
        default=Schedule.GPIPE,
        doc="Order of forward and backward passes. PipeDream is asynchronous: it updates after each micro-batch.",
    )
    cut: Cut = wire_field(
        default=Cut.COST,
        doc="How layers are divided into stages. Cost: the slowest stage takes the least time, by measured layers. Even: each "
        "stage has the same number of layers with parameters.",
    )
    stage_memory_mib: int | None = wire_field(
        default=None,
        name="stageMemoryMiB",
        minimum=1,
        maximum=2**31 - 1,
        doc="Largest memory of a stage in training, in MiB: weights, gradients, optimizer state and activations. Default: no limit.",
    )


@document
class MeshOptions:
    """How processes are arranged. The product of data, pipeline and tensor is the number of processes."""

    data: int = wire_field(default=1, minimum=1, maximum=MAX_REPLICAS, doc="Number of data-parallel groups.")
    pipeline: int = wire_field(default=1, minimum=1, maximum=1024, doc="Number of processes in a pipeline.")
    tensor: int = wire_field(default=1, minimum=1, maximum=1024, doc="Number of processes that divide the matrices of a layer.")
    shard: int | None = wire_field(
        default=None,
        minimum=1,
        maximum=MAX_REPLICAS,
        doc="FSDP: number of data-parallel processes that share one set of shards (hybrid sharding). Default: all of them.",
    )

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.data * self.pipeline * self.tensor

    def problems(self, *, processes: int) -> Iterator[tuple[str, str]]:
        """The fields that do not fit a world of so many processes, and the reasons."""
        if self.size != processes:
            sides = f"{self.data} (data) x {self.pipeline} (pipeline) x {self.tensor} (tensor)"
            message = f"{sides} is {self.size}, but the job has {processes} processes; change the mesh or the number of workers"
            yield "spec.options.mesh", message
        if self.shard is not None and self.data % self.shard:
            yield "spec.options.mesh.shard", f"{self.shard} does not divide data, {self.data}; write a number that does"
        elif self.shard not in (None, self.data) and self.tensor > 1:
            yield "spec.options.mesh.shard", "cannot be combined with tensor; leave one of them out"

    def unsupported(self, axes: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The axes that a strategy with these `axes` does not have."""
        supported = tuple(axes)
        sizes = {"data": self.data, "pipeline": self.pipeline, "tensor": self.tensor}
        for axis, size in sizes.items():
            if size > 1 and axis not in supported:
                yield f"spec.options.mesh.{axis}", f"the strategy has no such axis; it has {' and '.join(supported)}"


@document
class Options:
    """Options of the strategy. Options of other strategies are refused."""

    loop: Loop = wire_field(
        default=Loop.CUSTOM,
        doc="TensorFlow: what computes a step. Custom: Muster, from the task's loss. Fit: the model's own train_step.",
    )
    devices: tuple[str, ...] | None = wire_field(
        default=None,
        min_items=1,
        max_items=64,
        min_length=1,
        max_length=MAX_DEVICE_NAME,
        doc="TensorFlow on one machine: the devices to use, such as [GPU:0, GPU:1].",
    )
    logical_devices: int | None = wire_field(
        default=None, minimum=1, maximum=64, doc="TensorFlow on a CPU: number of logical devices to create."
    )
    pipeline: PipelineOptions | None = wire_field(default=None, doc="Options of the Pipeline strategy.")
    mesh: MeshOptions | None = wire_field(default=None, doc="How processes are arranged when strategies are combined.")
    gradient_compression: GradientCompression = wire_field(
        default=GradientCompression.NONE,
        doc="DDP: how gradients are compressed before they are sent. Compression loses information.",
    )
    synchronous: bool | None = wire_field(default=None, doc="RPC: whether each step waits for all workers. Default: false.")
