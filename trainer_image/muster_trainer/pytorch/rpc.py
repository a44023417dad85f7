"""PyTorch RPC. Workers fetch parameters from servers, and send gradients back, by remote calls.

The chief (rank 0) distributes the batches. In synchronous training, the workers share each batch. The servers update when all workers have
sent their gradients, with the sum in the order of workers. In asynchronous training, a worker gets the next batch as soon as it is idle. A
server updates with each gradient when it arrives. The staleness of a step is the number of updates between reading the parameters and
updating them.

Besides the remote calls, all ranks make one small all-reduce in each step. It has the votes to stop and to save. It also fails at once on
all ranks if one is lost.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

from muster_contract.errors import TrainerError
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.data import Order
from muster_trainer.pytorch import rpc_calls, state
from muster_trainer.pytorch.compat import rpc_options
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.parallel import Context
from muster_trainer.pytorch.rpc_ranks import Chief, RpcModel, Worker
from muster_trainer.pytorch.world import TIMEOUT, detect_peer_loss
from muster_trainer.tasks.module import Task
from muster_trainer.training.agreement import agree, gather
from muster_trainer.training.engine import Engine, Part, StepOutcome


@final
class RpcEngine(TorchEngine, Engine):
    """One rank: chief, worker or server."""

    parallel: RpcModel

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        super().__init__(task, spec, _connected)
        self._chief = Chief(self.parallel) if self.rank == 0 else None
        self._worker = Worker(self.parallel) if self.rank in self.parallel.workers else None
        self._stop_requested = self._save_requested = self._has_saved = False
        rpc_calls.serve(self._worker or self.parallel.server)

    def expect(self, order: Order, steps: range) -> None:
        """Synchronous workers read ahead. An asynchronous worker cannot, because the chief assigns its batches later."""
        self._order = order
        if self._worker and self.parallel.is_synchronous:
            super().expect(order, steps)
        if self._worker:
            self._worker.start(self.input if self.parallel.is_synchronous else None)

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        loss, staleness, waited, in_flight, failure = 0.0, 0, 0.0, 0, None
        if self._has_saved:
            self._has_saved = False
            with detect_peer_loss():
                dist.barrier()  # gradients may arrive as soon as the chief begins, but a server may still copy or write its parameters
        if self._chief:
            try:
                with detect_peer_loss():
                    if self.parallel.is_synchronous:
                        loss, staleness, waited = self._chief.train_together(indices, step)
                    else:
                        starts_more = not (self._stop_requested or self._save_requested)
                        loss, staleness, waited = self._chief.train_next(step, self._order, starts_more=starts_more)
                in_flight = self._chief.in_flight
            except TrainerError as error:
                failure = error
        tally = torch.tensor([loss, staleness, waited, in_flight, failure is not None, stop, save, busy], dtype=torch.float64)
        with detect_peer_loss():
            dist.all_reduce(tally)
        loss, staleness, waited, in_flight, failures, stops, saves, works = tally.tolist()
        if failures:
            agree(self, lambda: _raise(failure))
        self._stop_requested, self._save_requested = self._stop_requested or stops > 0, self._save_requested or saves > 0
        is_drained = not in_flight  # a checkpoint must have the reported steps and no others
        outcome = StepOutcome(
            loss=loss,
            stop=is_drained and self._stop_requested,
            save=is_drained and self._save_requested,
            busy=works > 0,
            staleness=None if self.parallel.is_synchronous else int(staleness),
            input_seconds=waited,
        )
        if outcome.save:
            self._save_requested = False
        return outcome

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        if self.rank == 0:
            with detect_peer_loss():
                self.parallel.fetch()
            self.parallel.replica.eval()
        return super().evaluate(batches)

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        with detect_peer_loss():
            optimizer, numbers = self.parallel.server.optimizer, self.initial_numbers
            self._has_saved = True
            return state.part_to_save(directory, self.parallel.module, optimizer, initial_numbers=numbers, room=room)

    def load(self, directory: Path) -> None:
        gather(self, lambda: state.load(directory, self.parallel.module, self.parallel.server.optimizer, self.shapes))

    def close(self) -> None:
        rpc.shutdown(graceful=False)
        super().close()


def _raise(failure: TrainerError | None) -> None:
    assert failure is not None, "only the chief calls this"
    raise failure


def _connected(context: Context, model: nn.Module) -> RpcModel:
    parallel = RpcModel(context, model)
    if "GLOO_SOCKET_IFNAME" in os.environ:
        os.environ.setdefault("TP_SOCKET_IFNAME", os.environ["GLOO_SOCKET_IFNAME"])
    options = rpc_options(threads=4, timeout=TIMEOUT.total_seconds())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # RPC warns that it uses a process group of its own
        rpc.init_rpc(rpc_calls.name_of(context.rank), rank=context.rank, world_size=context.world_size, rpc_backend_options=options)
    return parallel
