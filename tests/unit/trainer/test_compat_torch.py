"""Checks of the private parts of PyTorch that `muster_trainer.pytorch.compat` uses. Each failure names the part."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import distributed

from muster_trainer.pytorch import compat

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
PACKAGE = Path(compat.__file__).parent
CHANGED = f"PyTorch {torch.__version__} has changed {{}}; adapt muster_trainer/pytorch/compat.py"


def test_trees_of_tensors_are_mapped_and_listed() -> None:
    tree = {"one": (1, [2.0]), "two": 3}
    assert compat.tree_map(lambda leaf: leaf * 2, tree) == {"one": (2, [4.0]), "two": 6}, CHANGED.format("torch.utils._pytree.tree_map")
    assert compat.tree_leaves(tree) == [1, 2.0, 3], CHANGED.format("torch.utils._pytree.tree_leaves")
    assert compat.tree_map_only(float, str, tree) == {"one": (1, ["2.0"]), "two": 3}, CHANGED.format("torch.utils._pytree.tree_map_only")


def test_asynchronous_outputs_can_be_waited_for(world_of_one: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2))
    parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    outputs = model(torch.ones(1, 2))
    has_wait = hasattr(outputs, "wait") or type(outputs) is torch.Tensor
    assert has_wait, CHANGED.format(f"the outputs of tensor parallelism: {type(outputs).__name__} has no method wait")
    assert compat.wait_for_collectives(outputs).shape == (1, 2)


def test_a_sharded_tensor_has_its_box_in_the_whole_tensor(world_of_one: None) -> None:
    sharded = distribute_tensor(torch.ones(2, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
    places = compat.local_box(sharded), compat.local_box(torch.ones(2, 3))
    assert places == (((0, 0), (2, 3)),) * 2, CHANGED.format("torch.distributed.checkpoint.planner_helpers._create_chunk_from_dtensor")


def test_ddp_can_leave_the_state_of_each_rank_as_it_is(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(distributed, "_sync_module_states", lambda *_, **__: sent.append(1))
    compat.ddp(torch.nn.Linear(2, 2))
    assert sent, CHANGED.format("torch.nn.parallel.distributed._sync_module_states, which sends the state of rank 0")
    sent.clear()
    compat.ddp(torch.nn.Linear(2, 2), send_state=False)
    assert not sent, CHANGED.format("the way to keep DDP from sending the state of rank 0")
    compat.ddp(torch.nn.Linear(2, 2))
    assert sent


def test_a_model_of_ddp_can_go_on_in_another_world() -> None:
    model, inputs = torch.nn.Linear(2, 1), torch.ones(1, 2)
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        parallel = compat.ddp(model, send_state=False)
        calls: list[object] = []
        parallel.register_comm_hook(calls, _counted)
        for count in (1, 2):
            model.zero_grad()
            parallel(inputs).sum().backward()
            assert model.weight.grad is not None
            assert model.weight.grad.tolist() == [[1.0, 1.0]]
            assert len(calls) == count, CHANGED.format("what DDP leaves behind when its reducer is removed")
        compat.release_ddp(parallel)
        compat.leave_groups()
        assert not dist.is_initialized()
    model.zero_grad()
    model(inputs).sum().backward()
    assert len(calls) == 2, CHANGED.format("the hooks of DDP, which stay when its reducer is removed")


def _counted(calls, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations, which are text in this module
    calls.append(bucket)
    done = torch.futures.Future()  # type: ignore[var-annotated]
    done.set_result(bucket.buffer())
    return done


def test_rpc_accepts_the_transport() -> None:
    try:
        options = compat.rpc_options(threads=4, timeout=1.0)
    except TypeError as error:
        pytest.fail(CHANGED.format(f"the options _transports and _channels of TensorPipeRpcBackendOptions: {error}"))
    assert (options.num_worker_threads, options.rpc_timeout) == (4, 1.0)


def test_fsdp_on_the_cpu_works_or_has_the_function_of_the_fix() -> None:
    if not compat.FSDP_NEEDS_FIX_ON_CPU:
        assert hasattr(torch.cpu.Stream, "wait_event"), CHANGED.format("torch.cpu.Stream: it has no wait_event")
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    parameters = list(inspect.signature(_fsdp_collectives._get_gradient_divide_factors).parameters)
    assert len(parameters) == 3, CHANGED.format(f"_get_gradient_divide_factors: it takes {parameters}")


def test_schedules_do_not_scale_gradients(world_of_one: None) -> None:
    stage = PipelineStage(torch.nn.Linear(2, 2, bias=False), 0, 1, torch.device("cpu"), input_args=torch.ones(1, 2))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda outputs, rows: outputs.sum(), **compat.UNSCALED)
    schedule.step(torch.ones(2, 2), target=torch.arange(2))
    assert stage.submod.weight.grad.tolist() == [[2, 2], [2, 2]], CHANGED.format("the scaling of gradients in pipeline schedules")


@pytest.mark.skipif(not compat.SCHEDULES_NEED_FIX, reason="this PyTorch needs no fix of its schedules")
def test_schedules_that_need_the_fix_have_the_function_that_it_replaces() -> None:
    from torch.distributed.pipelining import schedules

    assert callable(getattr(schedules, "_batch_p2p", None)), CHANGED.format("torch.distributed.pipelining.schedules._batch_p2p")
    assert not torch.ones(1)._is_view(), CHANGED.format("Tensor._is_view")


def test_the_communicators_of_nccl_can_be_aborted(world_of_one: None) -> None:
    compat.abort_nccl()  # a world of Gloo has none
    dist.all_reduce(torch.ones(1))
    if dist.is_nccl_available():
        lacking = [name for name in ("abort", "_group_start", "_group_end") if not hasattr(dist.ProcessGroupNCCL, name)]
        assert not lacking, CHANGED.format(f"ProcessGroupNCCL: it has no {', '.join(lacking)}")
