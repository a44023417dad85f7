"""PyTorch RPC: workers fetch parameters from servers, and send gradients back, by remote calls.

The chief (rank 0) hands out the batches. Synchronous: the workers share each batch, and the servers update once all have
sent their gradients, added up in the order of workers. Asynchronous: each worker takes a batch of its own as soon as it
is free, and a server updates with each gradient as it comes; how many updates lie between reading the parameters and
updating them is the staleness of a step.

Beside the remote calls, all ranks meet in one small all-reduce a step: it carries the votes to stop and to save, and shows
each rank at once when another is gone.
"""

from __future__ import annotations

import copy
import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

from muster_trainer.agreement import of_all
from muster_trainer.contract import BadConfiguration, ExitCode, PeerLost, TrainerError, error_of
from muster_trainer.data import Order
from muster_trainer.engine import Part, StepOutcome, rate_share
from muster_trainer.pytorch import state
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.input import read_in_line
from muster_trainer.pytorch.parameter_server import ParameterServer, keep, place
from muster_trainer.pytorch.world import TIMEOUT, peers
from muster_trainer.tasks.module import describe

_here: RpcEngine | None = None
"""What remote calls to this process are about."""


class RpcEngine(TorchEngine):
    """One rank: chief, worker or server.

    `model` has the parameters that a server holds, and none elsewhere; chief and workers compute with `replica`, which
    they fill before use.
    """

    def _lay_out(self, model: nn.Module) -> nn.Module:
        global _here
        roles: list[str] = [""] * self.world
        dist.all_gather_object(roles, os.environ.get("MUSTER_ROLE", ""))
        self.workers = [rank for rank, role in enumerate(roles) if role == "worker"]
        self.servers = [rank for rank, role in enumerate(roles) if role == "ps"]
        if roles[0] != "chief" or not self.workers or not self.servers:
            raise BadConfiguration(f"RPC needs a chief, which is rank 0, a worker and a ps; the ranks are {', '.join(roles)}")
        self._check_buffers(model)
        self.synchronous = bool(self.spec.options.get("synchronous"))
        self.ways = len(self.workers) if self.synchronous else 1
        self.position = self.workers.index(self.rank) if self.synchronous and self.rank in self.workers else 0
        self.counts = self.rank == 0
        self.told = threading.Event()  # the chief's first call may come before this rank knows what to read
        self.next_step: int | None = None
        self.idle = list(self.workers)
        self.results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.pending = {"stop": False, "save": False}
        self.replica = copy.deepcopy(model) if self.rank not in self.servers else model
        self.owners = place({name: parameter.numel() for name, parameter in model.named_parameters()}, self.servers)
        self._lower(self.replica)
        own = keep(model, [name for name, server in self.owners.items() if server == self.rank])
        _here = self
        self._connect()
        return own

    def _check_buffers(self, model: nn.Module) -> None:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        others = sorted(model.state_dict().keys() - parameters)
        if others:
            raise BadConfiguration(
                f"{self.task.title}: parameter servers hold parameters alone, and the model has the buffer {others[0]}; use LayerNorm or "
                "GroupNorm in place of BatchNorm, or register it with persistent=False"
            )

    def _share_buffers(self) -> None:
        """There are none but those that the config gives (`_check_buffers`)."""

    def _connect(self) -> None:
        if "GLOO_SOCKET_IFNAME" in os.environ:
            os.environ.setdefault("TP_SOCKET_IFNAME", os.environ["GLOO_SOCKET_IFNAME"])
        options = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=4, rpc_timeout=TIMEOUT.total_seconds(), _transports=["uv"], _channels=["basic"]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that RPC uses a process group of its own
            rpc.init_rpc(_name(self.rank), rank=self.rank, world_size=self.world, rpc_backend_options=options)

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.rank not in self.servers or not any(True for _ in self.model.parameters()):
            self.server = ParameterServer(self.model, None)
            return torch.optim.SGD([torch.zeros(())], lr=self.learning_rate)
        optimizer = super()._optimizer()
        self.server = ParameterServer(self.model, optimizer)
        return optimizer

    def expect(self, order: Order, steps: range) -> None:
        """An asynchronous worker learns its next batch when it is free for it; else workers read ahead."""
        self.order = order
        if self.synchronous and self.rank in self.workers:
            super().expect(order, steps)
        self.told.set()

    # the chief

    def step(self, indices: np.ndarray, *, step: int, stop: bool, save: bool, busy: bool) -> StepOutcome:
        loss, staleness, waited, in_flight, failure = 0.0, 0, 0.0, 0, None
        if self.rank == 0:
            try:
                with peers(self.rank):
                    loss, staleness, waited = self._together(indices, step) if self.synchronous else self._next(step)
                in_flight = len(self.workers) - len(self.idle)
            except TrainerError as error:
                failure = error
        tally = torch.tensor([loss, staleness, waited, in_flight, failure is not None, stop, save, busy], dtype=torch.float64)
        with peers(self.rank):
            dist.all_reduce(tally)
        loss, staleness, waited, in_flight, failed, stops, saves, works = tally.tolist()
        if failed:
            self._fail(failure)
        self.pending = {"stop": self.pending["stop"] or stops > 0, "save": self.pending["save"] or saves > 0}
        settled = not in_flight  # a checkpoint has just the steps that were reported
        outcome = StepOutcome(
            loss=loss,
            stop=settled and self.pending["stop"],
            save=settled and self.pending["save"],
            busy=works > 0,
            staleness=None if self.synchronous else int(staleness),
            input_seconds=waited,
        )
        if outcome.save:
            self.pending["save"] = False
        return outcome

    def _fail(self, failure: TrainerError | None) -> None:
        """Raises the chief's error on every rank."""
        text = json.dumps({"code": failure.code, "message": str(failure)}) if failure else ""
        said = json.loads(self.broadcast(text))
        raise of_all(self, error_of(said["code"], said["message"]))

    def _together(self, indices: np.ndarray, step: int) -> tuple[float, int, float]:
        """One batch, shared by all workers; one update. The mean loss, no staleness, and the longest wait for samples."""
        calls = [self._call(worker, _train, indices, step) for worker in self.workers]
        sums, _, _, waits = zip(*(_answer(call) for call in calls), strict=True)
        loss = sum(sums) / len(indices)
        factor: float | None = 1.0
        most = self.task.config.gradientClipNorm
        if not np.isfinite(loss) and self.task.config.nanLoss == "Skip":
            factor = None
        elif most:
            norm = sum(_answer(call) for call in [self._call(server, _square) for server in self.servers]) ** 0.5
            factor = most / norm if norm > most else 1.0
        rate = rate_share(self.task, step)
        for call in [self._call(server, _update, factor, rate) for server in self.servers]:
            _answer(call)
        return loss, 0, max(waits)

    def _next(self, step: int) -> tuple[float, int, float]:
        """Keeps the workers busy, and waits for the next batch that is through: its mean loss, staleness and wait for samples."""
        if self.next_step is None:
            self.next_step = step
        limit = self.order.boundary(step, self.spec.checkpoint.every_steps if self.spec.checkpoint else None)
        while self.idle and self.next_step < limit and not any(self.pending.values()):
            worker = self.idle.pop(0)
            indices = self.order.batch_indices(self.next_step)
            call = self._call(worker, _train, indices, self.next_step)
            call.add_done_callback(lambda done, worker=worker: self.results.put((worker, done)))
            self.next_step += 1
        worker, done = self.results.get(timeout=TIMEOUT.total_seconds())
        self.idle.append(worker)
        loss, count, staleness, waited = _answer(done)
        return loss / count, staleness, waited

    def _call(self, rank: int, function: Callable[..., Any], *arguments: Any) -> torch.futures.Future[Any]:
        return rpc.rpc_async(_name(rank), function, args=arguments)

    # a worker

    def train(self, indices: np.ndarray, step: int) -> tuple[float, int, int, float]:
        """A worker's part of a step: sum of losses, number of samples, staleness, seconds that it waited for samples."""
        if self.task.config.deterministic:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))  # of this thread
        self.told.wait(TIMEOUT.total_seconds())
        began = time.monotonic()
        samples = next(self.coming.batches if self.synchronous else self._read(indices, step))
        waited = time.monotonic() - began
        versions = self._fetch()
        self._seed(step, position=self.position)
        self.replica.train()
        self.replica.zero_grad(set_to_none=True)
        total = self._differentiate(indices, samples).item()
        gradients = {name: parameter.grad for name, parameter in self.replica.named_parameters() if parameter.grad is not None}
        if not self.synchronous:
            if not np.isfinite(total) and self.task.config.nanLoss == "Skip":
                return total, len(indices), 0, waited
            self._clip(gradients)
        calls = []
        rate = rate_share(self.task, step)
        for server in self.servers:
            own = {name: gradient for name, gradient in gradients.items() if self.owners[name] == server}
            calls.append(self._call(server, _push, self.rank, versions[server], own, not self.synchronous, rate))
        return total, len(indices), max(_answer(call) for call in calls), waited

    def _read(self, indices: np.ndarray, step: int) -> Iterator[Any]:
        return read_in_line(self.task, self.task.train, [(step, self._share(indices)[0])], position=self.position)

    def _clip(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """By the norm over the whole model, which a worker's gradient is."""
        most = self.task.config.gradientClipNorm
        norm = sum(gradient.double().square().sum().item() for gradient in gradients.values()) ** 0.5
        if most and norm > most:
            for gradient in gradients.values():
                gradient.mul_(most / norm)

    def _forward(self, inputs: Any) -> Any:
        return self.replica(inputs)

    @torch.no_grad()
    def _fetch(self) -> dict[int, int]:
        """Fills the replica with the servers' parameters; gives the version of each server's."""
        calls = {server: self._call(server, _pull) for server in self.servers}
        versions = {}
        parameters = dict(self.replica.named_parameters())
        for server, call in calls.items():
            versions[server], values = _answer(call)
            for name, value in values.items():
                parameters[name].copy_(value)
        return versions

    # all ranks

    def evaluate(self, batches: Iterable[np.ndarray]) -> Mapping[str, float]:
        """The chief evaluates by itself."""
        if self.rank == 0:
            with peers(self.rank):
                self._fetch()
            self.replica.eval()
        return super().evaluate(batches)

    def _test_share(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All of it; next to nothing for the others."""
        read = indices if self.rank == 0 else indices[:1]
        return read, np.ones(len(read), dtype=np.float32)

    def _evaluate_batch(self, indices: np.ndarray, samples: Any) -> dict[str, float]:
        if self.rank != 0:
            return {}
        batch = self._on_device(samples)
        return self._measure(self.replica(batch[0]), batch, self._test_share(indices)[1])

    def snapshot(self, directory: Path, *, room: int) -> Part:
        with peers(self.rank):
            return state.snapshot(directory, self.model, self.server.optimizer, given=self.given, room=room)

    def load(self, directory: Path) -> None:
        with peers(self.rank):
            state.load(directory, self.model, self.server.optimizer, self.shapes)

    def close(self) -> None:
        rpc.shutdown(graceful=False)
        super().close()


# remote calls: what they give is an answer or a TrainerError, for a traceback is nothing to show


def _remote(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*arguments: Any) -> tuple[str, Any]:
        try:
            return "value", function(*arguments)
        except TrainerError as error:
            return "error", (int(error.code), str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever the user's code raises ends in one line)
            return "error", (int(ExitCode.USER_ERROR), f"the training code failed: {describe(error)}")

    return guarded


def _answer(call: torch.futures.Future[Any]) -> Any:
    """What a remote call gave. Raises PeerLost where it could not be made, and the other side's TrainerError."""
    try:
        kind, value = call.wait()
    except RuntimeError as error:
        raise PeerLost(f"a remote call failed: {' '.join(str(error).split())[:500]}") from error
    if kind == "error":
        code, message = value
        raise error_of(code, message)
    return value


def _engine() -> RpcEngine:
    assert _here is not None, "calls come after the world has been joined"
    return _here


@_remote
def _train(indices: np.ndarray, step: int) -> tuple[float, int, int, float]:
    return _engine().train(indices, step)


@_remote
def _pull() -> tuple[int, dict[str, torch.Tensor]]:
    return _engine().server.pull()


@_remote
def _push(worker: int, version: int, gradients: Mapping[str, torch.Tensor], update: bool, rate: float) -> int:
    return _engine().server.push(worker, version, gradients, update=update, rate=rate)


@_remote
def _square() -> float:
    return _engine().server.square()


@_remote
def _update(factor: float | None, rate: float) -> None:
    _engine().server.update(factor, rate=rate)


def _name(rank: int) -> str:
    return f"rank-{rank}"
