"""The engine of all PyTorch strategies: one process, one device, and a step over its share of the samples.

A strategy is a `ParallelModel`. The engine reads samples, runs the passes, lets the ranks vote, and updates.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from muster_contract.batch import learning_rate_factor
from muster_contract.environment import NAMES
from muster_contract.errors import PeerLost, UserError
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import Order
from muster_trainer.host.connections import Connections
from muster_trainer.host.orders import descriptor_in
from muster_trainer.pytorch import state
from muster_trainer.pytorch.adoption import adopt
from muster_trainer.pytorch.compat import leave_groups, tree_leaves
from muster_trainer.pytorch.device import device_of, fingerprint, make_deterministic
from muster_trainer.pytorch.finished_state import FinishedState
from muster_trainer.pytorch.input import InputStream, Request, batches_of
from muster_trainer.pytorch.parallel import Batch, Context, ParallelModel, broadcast_tensor
from muster_trainer.pytorch.seeds import seed_all
from muster_trainer.pytorch.snapshots import Snapshots
from muster_trainer.pytorch.world import World, backend_of, break_world, check_world, detect_peer_loss, join, refuse_together
from muster_trainer.tasks.averages import averages
from muster_trainer.tasks.module import Task
from muster_trainer.training.agreement import gather
from muster_trainer.training.engine import Part, PeersMemory, StepOutcome, Survival
from muster_trainer.training.survivor import SurvivorSteps


class TorchEngine:
    """One rank, on one device: CUDA device LOCAL_RANK, or the CPU. See `muster_trainer.training.engine.Engine`.

    `parallelize` makes this rank's part of a whole model, which is the same on all ranks.
    """

    def __init__(self, task: Task, spec: TrainerSpec, parallelize: Callable[[Context, nn.Module], ParallelModel]) -> None:
        self._backend = backend = backend_of(spec.communication)
        takes_orders = descriptor_in(os.environ) is not None
        if backend == "nccl" and takes_orders:
            # The supervisor ends collectives whose peer is lost. PyTorch's own watch would end the process, with its state.
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        began = time.monotonic()
        self.task, self.spec, self.device = task, spec, device_of(backend)
        self._ready_seconds: dict[str, float] = {} if self.device.type == "cpu" else {"deviceSeconds": time.monotonic() - began}
        make_deterministic(task.config)
        world = self._join()
        self.rank, self.world, self.broadcast, self.gather = world.rank, world.size, world.broadcast, world.gather
        self._snapshots = Snapshots.open(spec, world)
        self.memory: PeersMemory | None = self._snapshots
        max_samples = self._minimum(spec.batch.most_at_once or spec.batch.global_size)
        with refuse_together(self._store):
            model = self._build_model()
            self.shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
            with detect_peer_loss():
                cut = self._snapshots.cut if self._snapshots else ()
                context = Context(task, spec, self.device, self.rank, self.world, max_samples, cut=cut, has_survivors=self._has_survivors)
                self.parallel = parallelize(context, model)
        self.devices = self.parallel.layout.data_parallel_size
        self.refuses = self.parallel.refuses
        self.learning_rate = task.config.learningRate * learning_rate_factor(spec.batch.learning_rate_scaling, self.devices)
        self.parallel.build_optimizer(self.learning_rate)
        self.initial_numbers = state.numbers_of(self.parallel.optimizer)
        if self._snapshots:
            self._snapshots.bind(self.parallel, self.initial_numbers, settle=lambda: self._finished.restore())
        # With NCCL, a kernel that waits for a lost peer blocks the device until an order aborts it.
        notices_loss = self.world > 1 and (backend == "gloo" or takes_orders)
        is_whole = self.parallel.layout.holds_whole_model and notices_loss
        may_wait = task.survives and Connections.can_be_closed and takes_orders
        survives = is_whole and self.parallel.rejoins and self.memory is None and may_wait
        self.survival: Survival | None = self if survives else None
        stores_alone = self._snapshots is not None and self._snapshots.are_of_use_alone
        self.rescues = (notices_loss and stores_alone) or (is_whole and (spec.checkpoint is not None or survives))
        self._finished = FinishedState(self.parallel.module, is_kept=self.rescues)
        self._connections.complete()

    def _join(self, done: int | None = None, *, meanwhile: Callable[[], None] | None = None) -> World:
        """Joins the world. In later attempts, all ranks exchange the steps of their states."""
        self._connections = Connections()
        self._store = join(self._backend, meanwhile=meanwhile)
        world = World(self.device)
        if self._backend == "nccl":
            began = time.monotonic()
            self._minimum(0)
            self._ready_seconds["collectivesSeconds"] = time.monotonic() - began
        self.survivor_steps = None
        if world.size > 1 and os.environ.get(NAMES["attempt"], "0") != "0":
            self.survivor_steps = SurvivorSteps(tuple(map(json.loads, world.gather(json.dumps(done)))))
        return world

    @property
    def _has_survivors(self) -> bool:
        return self.survivor_steps is not None and self.survivor_steps.survivors > 0

    def _build_model(self) -> nn.Module:
        """The whole model, with the numbers of rank 0 on every rank."""
        seed_all(self.task.config.seed, 0, 0)
        model = self.task.build_model(self.task.config)
        if not isinstance(model, nn.Module):
            raise UserError(f"{self.task.title}: build_model must return a torch.nn.Module; it returned {type(model).__name__}")
        model.to(self.device)
        if self._has_survivors:  # survivors send their numbers later
            return model
        with detect_peer_loss():
            for tensor in model.state_dict().values():
                broadcast_tensor(tensor, source=0)
        return model

    def _minimum(self, number: int) -> int:
        """The smallest number of any rank. Pods may differ: some were made before the number of workers changed, and some after."""
        minimum = torch.tensor(number, device=self.device)
        with detect_peer_loss():
            dist.all_reduce(minimum, dist.ReduceOp.MIN)
        return int(minimum.item())

    # after the loss of a peer

    def disconnect(self) -> None:
        if self._backend == "nccl":
            break_world()
        self._connections.close()

    def abandon_world(self) -> None:
        self.disconnect()
        self._finished.restore()
        self._finished.drop()
        self.parallel.module.train()
        self.input.batches = iter(())  # ends the processes that read ahead

    def rejoin(self, done: int, meanwhile: Callable[[], None]) -> None:
        leave_groups(self._store)
        self._join(done, meanwhile=meanwhile)
        if self._minimum(self.spec.batch.most_at_once or self.spec.batch.global_size) != self.parallel.context.max_samples:
            # A new process can take the number of the other ranks.
            raise PeerLost("another rank takes fewer samples at once than the ranks of the previous world")
        with detect_peer_loss():
            self.parallel.rejoin()
        self._connections.complete()

    def adopt(self) -> None:
        if self.survivor_steps:
            device = self.device if self._backend == "nccl" else torch.device("cpu")
            adopt(self.survivor_steps, self.parallel, self.initial_numbers, device=device)

    # facts for the training loop

    def fingerprint(self) -> Mapping[str, Any]:
        return {**fingerprint(self.device), **self._ready_seconds}

    def weigh(self) -> tuple[int, int]:
        module, optimizer = self.parallel.module, self.parallel.optimizer
        gradients = sum(one.nbytes for one in module.parameters() if one.requires_grad)
        state_of_training = [*module.state_dict().values(), *tree_leaves(list(optimizer.state.values()))]
        return gradients, gradients + sum(one.nbytes for one in state_of_training if isinstance(one, torch.Tensor))

    # steps

    def expect(self, order: Order, steps: range) -> None:
        self.parallel.module.train()
        self._is_weighted: bool | None = None
        self.input = self._read(self.task.train, ((step, self.parallel.split.share(order.batch_indices(step))[0]) for step in steps))

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        with detect_peer_loss():
            batch = Batch(step, indices, self.input.take())
        started = time.monotonic()
        self.parallel.seed(step)
        self.parallel.optimizer.zero_grad(set_to_none=True)
        self.parallel.objective.start_step(step)
        self.parallel.start_step(batch)
        self._finished.copy()
        with check_world():
            sums = self.parallel.forward_backward(batch)
        counted = sums if self.parallel.layout.counts_losses else torch.zeros_like(sums)
        with detect_peer_loss():
            self.parallel.reduce_gradients()
            self._divide_by_weight(counted, len(indices))
            self.parallel.clip_gradients()
            self.parallel.finish_passes()
        tally = Tally(counted, [stop, save, busy], self.input.read())
        if self.rescues:
            tally.wait()  # the update needs no peer: if one is lost before it, the state is still that of the last step
            self._finished.drop()
        is_skipped = self.task.config.nanLoss == "Skip" and not np.isfinite(tally.loss())
        update_started = time.monotonic()
        if not is_skipped:
            if self._snapshots:
                self._snapshots.before_update()
            with self._finished.updating():
                self.parallel.update(step)
        update_seconds = time.monotonic() - update_started
        loss, votes = tally.loss(), tally.wait()[2:]
        self.input.merge(votes[3:])
        waited, read_seconds = self.input.waits()
        ready = self.parallel.gradients_ready_at()
        own_seconds = None if self.device.type == "cuda" else read_seconds + max(0.0, ready - started) + update_seconds
        return StepOutcome(
            loss=loss,
            stop=votes[0] > 0,
            save=votes[1] > 0,
            busy=votes[2] > 0,
            staleness=self.parallel.staleness,
            input_seconds=waited,
            own_seconds=own_seconds,
            measures_passes=ready > 0,
        )

    def _divide_by_weight(self, sums: torch.Tensor, samples: int) -> None:
        """Divides the gradients by the weight of the whole batch, if the task's loss has weights. The first step of a world tells, since
        not every rank calls the loss."""
        if self._is_weighted is None:
            self._is_weighted = not self._minimum(int(not self.parallel.objective.is_weighted))
        if self._is_weighted:
            weight = sums[1].clone()
            dist.all_reduce(weight)
            self.parallel.divide_by_weight(samples, weight.item())

    def _read(self, data: Any, requests: Iterable[Request]) -> InputStream:
        position = self.parallel.layout.data_parallel_rank
        pinned = self.device.type == "cuda"
        return InputStream(batches_of(self.task, data, requests, spec=self.spec.input, position=position, pinned=pinned), self.device)

    # evaluation

    @torch.no_grad()
    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        self.parallel.finish_updates()
        with detect_peer_loss():
            self.parallel.sync_buffers()
        self.parallel.module.eval()
        sums: dict[str, float] = {}
        steps = list(batches)
        samples = self._read(self.task.test, ((step, self.parallel.test_share(indices)[0]) for step, indices in enumerate(steps)))
        for step, indices in enumerate(steps):
            with detect_peer_loss():
                batch = Batch(step, indices, samples.take())
            _add(sums, self.parallel.evaluate(batch))
        self.parallel.module.train()
        return averages(self._sum_over_ranks(sums), sum(map(len, steps)))

    def _sum_over_ranks(self, sums: dict[str, float]) -> dict[str, float]:
        """The sums of all ranks whose losses count, in the order of ranks so that they are the same each time."""
        gathered: list[dict[str, float]] = [{}] * self.world
        with detect_peer_loss():
            dist.all_gather_object(gathered, sums if self.parallel.layout.counts_losses else {})
        total: dict[str, float] = {}
        for part in gathered:
            _add(total, part)
        return total

    # checkpoints

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        self.parallel.finish_updates()
        with detect_peer_loss():
            self.parallel.sync_buffers()
            return self._part(directory, room=room)

    def rescue(self, directory: Path) -> Part | None:
        if not self.parallel.layout.holds_whole_model or not self._finished.restore():
            return None
        return self._part(directory, room=0, alone=True)

    def _part(self, directory: Path, *, room: int, alone: bool = False) -> Part:
        parallel = self.parallel
        numbers, alone_as = self.initial_numbers, self.rank if alone else None
        return state.part_to_save(directory, parallel.module, parallel.optimizer, initial_numbers=numbers, room=room, alone_as=alone_as)

    def load(self, directory: Path) -> None:
        gather(self, lambda: state.load(directory, self.parallel.module, self.parallel.optimizer, self.shapes))

    def close(self) -> None:
        """Destroys NCCL's groups, as NCCL needs it. Gloo's groups are left to the end of the process: PyTorch 2.6 destroys them by
        joining their threads while it holds the GIL, which these threads may be waiting for."""
        if self.device.type == "cuda":
            dist.destroy_process_group()


class Tally:
    """The sum over all ranks of losses, their weights, votes and input readings, in one all-reduce. It runs beside the update, unless the
    engine can rescue."""

    def __init__(self, losses: torch.Tensor, votes: list[bool], readings: list[float]) -> None:
        numbers = torch.tensor([*votes, *readings], dtype=torch.float64, device=losses.device)
        self._sums = torch.cat([losses, numbers])
        with detect_peer_loss():
            self._work = dist.all_reduce(self._sums, async_op=True)
        self._numbers: list[float] = []

    def wait(self) -> list[float]:
        """Waits for the sums, and returns them. The step then counts, even if the world is broken later."""
        if not self._numbers:
            with detect_peer_loss():
                self._work.wait()
                self._numbers = self._sums.tolist()
        return self._numbers

    def loss(self) -> float:
        """The loss of the step."""
        total, weight, *_ = self.wait()
        return total / weight if weight else math.nan


def _add(sums: dict[str, float], others: Mapping[str, float]) -> None:
    for name, value in others.items():
        sums[name] = sums.get(name, 0.0) + value
