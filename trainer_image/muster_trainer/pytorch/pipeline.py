"""PyTorch pipeline parallelism: the layers are cut into stages on different ranks, and micro-batches flow through them.

GPipe (Huang et al., 2019), 1F1B (Narayanan et al., 2019, with a flush) and Interleaved1F1B (Narayanan et al., 2021) differ in the order
of forward and backward passes. One update follows them all: a step computes what one device computes, in smaller portions.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.utils import _pytree as pytree

from muster_trainer.agreement import agree
from muster_trainer.checkpoint.cuts import kept_cut
from muster_trainer.contract import BadConfiguration, TrainerSpec
from muster_trainer.data import portions
from muster_trainer.events import Events
from muster_trainer.pipeline_cut import MIB, Costs, cut_by_cost, cut_evenly, held
from muster_trainer.pytorch import schedules_of_2_6
from muster_trainer.pytorch.engine import TorchEngine, share
from muster_trainer.pytorch.input import read_in_line
from muster_trainer.pytorch.mesh import mesh_of
from muster_trainer.pytorch.pipeline_costs import Profile, copy, layers_of, profile
from muster_trainer.pytorch.world import peers

_SLOTS = {"Adam": 2, "AdamW": 2}
FIELD = "spec.options.pipeline"


class Pipeline(TorchEngine):
    """The stages of one rank, in a mesh of `data` x `pipeline`: one stage, or every so many-th where they are interleaved.

    Messages between stages have one size: `rows` samples go through the pipeline at once, and a shorter batch, at the end
    of an epoch, is filled up with samples that do not count.
    """

    def _lay_out(self, model: nn.Module) -> nn.Module:
        mesh = mesh_of(self.spec, self.device, world=self.world, sides=("data", "pipeline"), whole="pipeline")
        self.ways, self.position = mesh["data"].size(), mesh["data"].get_local_rank()
        self.place, self.processes = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
        self.counts = self.place == self.processes - 1
        self.data_group, self.stage_group = mesh.get_group("data"), mesh.get_group("pipeline")
        self.options = self.spec.options.get("pipeline") or {}
        self.kind = str(self.options.get("schedule") or "GPipe")
        self.stages = stages_of(self.options, processes=self.processes)
        self.micro_batches = micro_batches(self.spec, ways=self.ways, stages=self.stages, processes=self.processes)
        self.rows = self.spec.batch.global_size // (self.ways * self.accumulation)
        layers = layers_of(model, title=self.task.title)
        for _, layer in layers:
            self._lower(layer)
        decided = agree(self, lambda: self._decide(model))
        ends = list(np.cumsum(decided["cut"]))
        starts = [0, *ends[:-1]]
        self.shapes_between = [Profile.of(decided["profile"]).shapes[place] for place in [*starts, len(layers)]]
        self.own = range(self.place, self.stages, self.processes)
        self.parts = [nn.Sequential(OrderedDict(layers[starts[stage] : ends[stage]])) for stage in self.own]
        for part in self.parts:
            part.register_forward_pre_hook(lambda _, inputs: copy(*inputs))
            part.register_forward_hook(lambda _, inputs, outputs: outputs.contiguous())  # what is sent must be
        if schedules_of_2_6.NEEDED:
            schedules_of_2_6.mend(self.parts[-1] if self.counts else None)
        self._prepare()
        return nn.Sequential(OrderedDict(layer for part in self.parts for layer in part._modules.items()))

    def _decide(self, model: nn.Sequential) -> dict[str, Any]:
        """Rank 0 alone: the cut, and what was measured."""
        indices = np.zeros(self.rows // self.micro_batches, dtype=np.int64)
        batch = next(read_in_line(self.task, self.task.train, [(0, indices)], position=self.position))
        found = profile(model, self._on_device(batch)[0], title=self.task.title)
        slots = _SLOTS.get(self.task.config.optimizer, int(self.task.config.momentum > 0)) if self.task.optimizer is None else 2
        how = {"stages": self.stages, "processes": self.processes, "micro_batches": self.micro_batches}
        costs = Costs(found.layers, held(self.kind, **how, slots=slots))
        even, most = self.options.get("cut") == "Even", self.options.get("stageMemoryMiB")
        cut, limit = (cut_evenly if even else cut_by_cost), most and int(most) * MIB
        shape = {**how, "rows": len(indices), "schedule": self.kind, "cut": "Even" if even else "Cost", "limit": limit}
        world = {"devices": self.fingerprint()["devices"], "threads": torch.get_num_threads(), "model": self.shapes}
        directory = self.spec.checkpoint.directory if self.spec.checkpoint else None
        whole = {"stages": self.stages, "layers": len(found.layers)}
        sizes, kept = kept_cut(directory, {**shape, **world}, lambda: cut(costs, limit), **whole)
        if self.stages > 1:
            self._tell(costs, sizes, by="evenly" if even else "by cost", kept=kept)
        return {"cut": sizes, "profile": found.told()}

    def _tell(self, costs: Costs, sizes: Sequence[int], *, by: str, kept: bool) -> None:
        """What the user should know of the cut: layers, milliseconds and memory of each stage."""
        stages = []
        for stage, end in enumerate(np.cumsum(sizes).tolist()):
            first = end - sizes[stage]
            seconds, size = costs.seconds(first, end), int(costs.bytes(stage, first, end))
            stages.append({"layers": [layer.name for layer in costs.layers[first:end]], "seconds": seconds, "bytes": size})
        told = "; ".join(
            f"stage {stage}: {one['layers'][0].removeprefix('layer ')} to {one['layers'][-1].removeprefix('layer ')}, "  # type: ignore[index]
            f"{1000 * one['seconds']:.2f} ms, {one['bytes'] / MIB:.1f} MiB"
            for stage, one in enumerate(stages)
        )
        events = Events.from_environment(os.environ, self.rank)
        events.emit("measurement", what="pipeline", cut=by, kept=kept, stages=stages, layers=list(map(asdict, costs.layers)))
        events.emit("notice", message=f"{len(sizes)} stages, cut {by}{' as the run before' if kept else ''}: {told} a micro-batch")

    def _prepare(self) -> None:
        """The schedule of a step."""
        stages = [
            PipelineStage(
                part,
                stage,
                self.stages,
                self.device,
                input_args=self.shapes_between[stage].clone().requires_grad_(stage > 0),
                output_args=self.shapes_between[stage + 1].clone().requires_grad_(),
                group=self.stage_group,
            )
            for stage, part in zip(self.own, self.parts, strict=True)
        ]
        how = {"n_microbatches": self.micro_batches, "loss_fn": self._loss, **schedules_of_2_6.UNSCALED}
        if len(stages) > 1:
            self.schedule: Any = ScheduleInterleaved1F1B(stages, **how)
        else:
            self.schedule = (ScheduleGPipe if self.kind == "GPipe" else Schedule1F1B)(stages[0], **how)

    def _share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each portion filled up to `rows` samples."""
        samples, weights = [], []
        for piece in portions(portions(indices, self.ways)[self.position], self._count(indices)):
            first = piece[:1] if len(piece) else indices[:1]
            samples += [piece, np.repeat(first, self.rows - len(piece))]
            weights.append(np.arange(self.rows) < len(piece))
        return np.concatenate(samples), np.concatenate(weights).astype(np.float32)

    def _differentiate(self, indices: np.ndarray, samples: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch, weights in self._pieces(indices, samples):
            losses: list[torch.Tensor] = []
            self.batch, self.real = batch, int(weights.sum())
            arguments = (batch[0],) if self.place == 0 else ()
            target = torch.arange(self.rows, device=self.device) if self.counts else None
            with peers(self.rank):
                self.schedule.step(*arguments, target=target, losses=losses)
            total += sum((loss.detach().double() for loss in losses), torch.zeros_like(total))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(indices)
        return total

    def _loss(self, outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The sum of losses of a micro-batch; `rows` are its places in the batch."""
        count = int((rows < self.real).sum())
        if not count:
            return outputs.sum() * 0.0
        batch = pytree.tree_map(lambda one: one[rows[:count]], self.batch)
        return self._sum(self._losses(outputs[:count], batch), np.ones(count, dtype=np.float32), "loss")

    def _evaluate_batch(self, indices: np.ndarray, samples: Any) -> dict[str, float]:
        sums: dict[str, float] = {}
        for batch, weights in self._pieces(indices, samples):
            outputs, real = self._forward_alone(batch[0]), int(weights.sum())
            if self.counts and real:
                counted = pytree.tree_map(lambda one, real=real: one[:real], batch)
                for name, value in self._measure(torch.cat(outputs)[:real], counted, weights[:real]).items():
                    sums[name] = sums.get(name, 0.0) + value
        return sums

    def _forward_alone(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of each micro-batch, in the last stage. Sends are waited for in the end: a stage need not wait for the next one."""
        outputs, sent = [], []
        for piece in inputs.chunk(self.micro_batches):
            for stage, part in zip(self.own, self.parts, strict=True):
                values = part(piece if stage == 0 else self._received(stage))
                if stage < self.stages - 1:
                    with peers(self.rank):
                        sent.append(dist.isend(values, self._neighbour(1), group=self.stage_group))
                else:
                    outputs.append(values)
        for work in sent:
            with peers(self.rank):
                work.wait()
        return outputs

    def _received(self, stage: int) -> torch.Tensor:
        buffer = torch.empty_like(self.shapes_between[stage], device=self.device)
        with peers(self.rank):
            dist.recv(buffer, self._neighbour(-1), group=self.stage_group)
        return buffer

    def _neighbour(self, distance: int) -> int:
        """The rank of the process that has the next stage (1) or the one before (-1)."""
        return dist.get_global_rank(self.stage_group, (self.place + distance) % self.processes)

    def _copies(self) -> int:
        return self.ways

    def _share_buffers(self) -> None:
        for buffer in self.model.buffers():
            share(buffer, source=dist.get_global_rank(self.data_group, 0), group=self.data_group)


def stages_of(options: Mapping[str, Any], *, processes: int) -> int:
    """The number of stages. Raises BadConfiguration where the processes cannot share them."""
    interleaved = options.get("schedule") == "Interleaved1F1B" and processes > 1
    stages = int(options.get("stages") or (2 * processes if interleaved else processes))
    if processes == 1:
        return 1
    if interleaved and (stages % processes or stages == processes):
        raise BadConfiguration(
            f"{FIELD}.stages: {stages} stages for {processes} processes, each of which has several; write {2 * processes}, say"
        )
    if not interleaved and stages != processes:
        raise BadConfiguration(f"{FIELD}.stages: {stages} stages for {processes} processes in a row; write {processes}")
    return stages


def micro_batches(spec: TrainerSpec, *, ways: int, stages: int, processes: int) -> int:
    """The number of micro-batches. Raises BadConfiguration where it does not divide what goes through the pipeline."""
    options = spec.options.get("pipeline") or {}
    count = int(options.get("microBatches") or stages)
    schedule = options.get("schedule") or "GPipe"
    if schedule == "1F1B" and count < stages:
        raise BadConfiguration(f"{FIELD}.microBatches: 1F1B needs at least as many micro-batches as stages; write {stages}")
    if schedule == "Interleaved1F1B" and count % processes:
        raise BadConfiguration(f"{FIELD}.microBatches: Interleaved1F1B needs a multiple of the {processes} processes; write {stages}")
    size, parts = spec.batch.global_size, ways * spec.batch.accumulation_steps
    if size % (parts * count):
        near = max(round(size / (parts * count)), 1) * parts * count
        shared = f"{size} samples" + (f" in {parts} parts (data-parallel ways x accumulation steps)" if parts > 1 else "")
        raise BadConfiguration(
            f"{FIELD}.microBatches: {count} micro-batches do not divide a batch of {shared}; write a number that does, "
            f"or batch.globalSize: {near}"
        )
    return count
