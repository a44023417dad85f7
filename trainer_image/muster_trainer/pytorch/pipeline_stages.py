"""The stage of a pipeline on this rank: how the layers are cut, and how stages send tensors to each other."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from muster_contract.errors import BadConfiguration
from muster_contract.events import PipelineMeasurement, Stage
from muster_contract.notices import NoticeReason
from muster_contract.options import Cut, PipelineOptions
from muster_contract.pipeline import PipelinePlan
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.checkpoint.cuts import saved_cut
from muster_trainer.checkpoint.objects import location_of
from muster_trainer.host.events import Events
from muster_trainer.pytorch.compat import tree_map
from muster_trainer.pytorch.device import fingerprint, to_device
from muster_trainer.pytorch.input import read_in_line
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.pytorch.parallel import Batch, BatchSplit, Context, Layout, ParallelModel, broadcast_tensor
from muster_trainer.pytorch.pipeline_costs import Profile, copy, layers_of, profile
from muster_trainer.pytorch.pipeline_cut import MIB, Costs, cut_by_cost, cut_evenly, stage_memories
from muster_trainer.pytorch.world import World, detect_peer_loss
from muster_trainer.training.agreement import agree

FIELD = "spec.options.pipeline"
_SLOTS = {"Adam": 2, "AdamW": 2}


@dataclass(frozen=True)
class _PaddedSplit(BatchSplit):
    """Pads micro-batches to `rows` samples, because all messages between stages must have one size."""

    rows: int

    def share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        samples, weights = [], []
        replica = np.array_split(indices, self.layout.data_parallel_size)[self.layout.data_parallel_rank]
        for piece in np.array_split(replica, self.count(indices)):
            first = piece[:1] if len(piece) else indices[:1]
            samples += [piece, np.repeat(first, self.rows - len(piece))]
            weights.append(np.arange(self.rows) < len(piece))
        return np.concatenate(samples), np.concatenate(weights).astype(np.float32)


class PipelineModel(ParallelModel):
    """The stage of one rank in a mesh of `data` x `pipeline`. There are `stages` stages in all. `module` has the layers of this one."""

    def __init__(self, context: Context, model: nn.Module) -> None:
        spec = context.spec
        mesh = mesh_of(spec, context.device, world=context.world_size, sides=("data", "pipeline"), whole="pipeline")
        self.pipeline_rank, self.pipeline_size = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
        self._data_group, self.stage_group = mesh.get_group("data"), mesh.get_group("pipeline")
        ways = mesh["data"].size()
        self._options = spec.options.pipeline or PipelineOptions()
        plan = plan_of(spec, ways=ways, processes=self.pipeline_size)
        self.schedule, self.stages, self.micro_batch_count = plan.schedule, plan.stages, plan.micro_batches
        self.rows = spec.batch.global_size // (ways * spec.batch.accumulation_steps)
        self.has_last_stage = self.pipeline_rank == self.pipeline_size - 1
        layout = Layout(ways, mesh["data"].get_local_rank(), gradient_copies=ways, counts_losses=self.has_last_stage)
        split = _PaddedSplit(layout, spec.batch.accumulation_steps, context.max_samples, context.device, self.rows)
        layers = layers_of(model, title=context.task.title)
        for _, layer in layers:
            context.lower_precision(layer)
        decision = agree(World(context.device), lambda: self._cut(context, layout, model))
        self.cut = tuple(decision["cut"])
        ends = list(np.cumsum(self.cut))
        starts = [0, *ends[:-1]]
        shapes = Profile.of(decision["profile"]).shapes
        self.shapes_between = [shapes[layer] for layer in [*starts, len(layers)]]
        module = nn.Sequential(OrderedDict(layers[starts[self.pipeline_rank] : ends[self.pipeline_rank]]))
        module.register_forward_pre_hook(lambda _, inputs: copy(*inputs))
        module.register_forward_hook(lambda _, inputs, outputs: outputs.contiguous())  # sends need contiguous tensors
        super().__init__(context, layout, module, split=split, reduces_over=self._data_group)

    # the cut

    def _cut(self, context: Context, layout: Layout, model: nn.Module) -> dict[str, Any]:
        """Measures the layers and decides the cut. Only rank 0 calls it."""
        assert isinstance(model, nn.Sequential)
        task, spec = context.task, context.spec
        indices = np.zeros(self.rows // self.micro_batch_count, dtype=np.int64)
        batch = next(read_in_line(task, task.train, [(0, indices)], position=layout.data_parallel_rank))
        measured = profile(model, to_device(batch, context.device)[0], title=task.title)
        slots = _SLOTS.get(task.config.optimizer, int(task.config.momentum > 0)) if task.optimizer is None else 2
        pipeline = {"stages": self.stages, "micro_batches": self.micro_batch_count}
        costs = Costs(measured.layers, stage_memories(self.schedule, **pipeline, slots=slots))
        most = self._options.stage_memory_mib
        cut, limit = (cut_evenly if self._options.cut is Cut.EVEN else cut_by_cost), most and most * MIB
        shape = {**pipeline, "rows": len(indices), "schedule": self.schedule.value, "cut": self._options.cut.value, "limit": limit}
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        world = {"devices": fingerprint(context.device)["devices"], "threads": torch.get_num_threads(), "model": shapes}
        directory = location_of(spec.checkpoint.directory) if spec.checkpoint else None
        whole = {"stages": self.stages, "layers": len(measured.layers)}
        sizes, is_inherited = list(context.cut), True
        if len(sizes) != self.stages or sum(sizes) != len(measured.layers):
            sizes, is_inherited = saved_cut(directory, {**shape, **world}, lambda: cut(costs, limit), **whole)
        if self.stages > 1:
            _report_cut(costs, sizes, cut=self._options.cut, is_inherited=is_inherited)
        return {"cut": sizes, "profile": measured.to_document()}

    # between stages

    def neighbour(self, distance: int) -> int:
        """The rank of the process that has the next stage (1) or the previous one (-1)."""
        return dist.get_global_rank(self.stage_group, (self.pipeline_rank + distance) % self.pipeline_size)

    def sync_buffers(self) -> None:
        for buffer in self.module.buffers():
            broadcast_tensor(buffer, source=dist.get_global_rank(self._data_group, 0), group=self._data_group)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        sums: dict[str, float] = {}
        for samples, weights in self.split.micro_batches(batch):
            outputs, real = self._forward_only(samples[0]), int(weights.sum())
            if self.has_last_stage and real:
                counted = tree_map(lambda tensor, real=real: tensor[:real], samples)
                for name, value in self.objective.metric_sums(torch.cat(outputs)[:real], counted, weights[:real]).items():
                    sums[name] = sums.get(name, 0.0) + value
        return sums

    def _forward_only(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """Runs the forward passes. Returns the outputs of each micro-batch in the last stage, and nothing in others. Waits for sends at the
        end, so that a stage does not wait for the next one."""
        outputs, sent = [], []
        for piece in inputs.chunk(self.micro_batch_count):
            values = self.module(self._receive() if self.pipeline_rank else piece)
            if self.has_last_stage:
                outputs.append(values)
            else:
                with detect_peer_loss():
                    sent.append(dist.isend(values, self.neighbour(1), group=self.stage_group))
        with detect_peer_loss():
            for work in sent:
                assert work is not None, "this rank is in the group of its stages"
                work.wait()
        return outputs

    def _receive(self) -> torch.Tensor:
        buffer = torch.empty_like(self.shapes_between[self.pipeline_rank], device=self.context.device)
        with detect_peer_loss():
            dist.recv(buffer, self.neighbour(-1), group=self.stage_group)
        return buffer


def _report_cut(costs: Costs, sizes: Sequence[int], *, cut: Cut, is_inherited: bool) -> None:
    """Reports the layers, milliseconds and memory of each stage to the user."""
    stages: list[Stage] = []
    texts: list[str] = []
    for stage, end in enumerate(np.cumsum(sizes).tolist()):
        first = end - sizes[stage]
        seconds, size = costs.seconds(first, end), int(costs.bytes(stage, first, end))
        names = [layer.name for layer in costs.layers[first:end]]
        stages.append(Stage(layers=tuple(names), seconds=seconds, bytes=size))
        edges = f"{names[0].removeprefix('layer ')} to {names[-1].removeprefix('layer ')}"
        texts.append(f"stage {stage}: {edges}, {1000 * seconds:.2f} ms, {size / MIB:.1f} MiB")
    events = Events.from_environment(os.environ, dist.get_rank())
    layers = tuple(asdict(layer) for layer in costs.layers)
    events.emit(PipelineMeasurement(cut=cut, inherited=is_inherited, stages=tuple(stages), layers=layers))
    how = f"cut {'evenly' if cut is Cut.EVEN else 'by cost'}{' as in the run before' if is_inherited else ''}"
    events.notice(NoticeReason.PIPELINE_CUT, f"{len(sizes)} stages, {how}: {'; '.join(texts)} a micro-batch")


def plan_of(spec: TrainerSpec, *, ways: int, processes: int) -> PipelinePlan:
    """The stages and micro-batches. Raises BadConfiguration if the batch cannot be divided, for example the default batch."""
    plan = PipelinePlan.of(spec.options.pipeline or PipelineOptions(), processes=processes)
    if problem := plan.problem(global_size=spec.batch.global_size, parts=ways * spec.batch.accumulation_steps):
        raise BadConfiguration(f"{FIELD}.{problem[0]}: {problem[1]}")
    return plan
