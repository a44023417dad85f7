"""Seconds that two processes on one GPU need for the parts of a start, and for the abort of a collective whose peer is gone.

`python cuda_starts.py` starts both processes and prints the figures of the first one as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time

began = time.monotonic()
marks: dict[str, float] = {}


def mark(name: str) -> None:
    global began
    now = time.monotonic()
    marks[name] = round(now - began, 3)
    began = now


def main(rank: int, path: str) -> None:
    import torch
    import torch.distributed as dist

    from muster_trainer.pytorch.compat import abort_nccl, leave_groups

    mark("import")
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    torch.cuda.set_device(0)
    numbers = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    mark("CUDA context")
    dist.init_process_group("nccl", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    mark("process group")
    dist.all_reduce(numbers)
    torch.cuda.synchronize()
    mark("NCCL and first all-reduce")
    dist.all_reduce(numbers)
    torch.cuda.synchronize()
    mark("second all-reduce")
    layer = torch.nn.Linear(1024, 1024, device="cuda")
    layer(numbers[:1024]).sum().backward()
    torch.cuda.synchronize()
    mark("first kernels")
    if rank == 1:
        os._exit(0)
    time.sleep(0.5)
    dist.all_reduce(numbers)

    def abort() -> None:
        time.sleep(1.0)
        begun = time.monotonic()
        abort_nccl()
        marks["abort"] = round(time.monotonic() - begun, 3)

    thread = threading.Thread(target=abort)
    thread.start()
    mark("wait for the peer's end")
    numbers.sum().item()
    mark("all-reduce without the peer, until the abort")
    thread.join()
    assert numbers.cpu().shape == (1 << 20,)
    mark("copy to the host after it")
    leave_groups()
    mark("leave")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    mark("new world of one")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    facts = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "nccl": nccl, "cpus": os.cpu_count()}
    print(json.dumps({**facts, "seconds": marks}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(int(sys.argv[1]), sys.argv[2])
    else:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        with tempfile.TemporaryDirectory() as folder:
            both = [subprocess.Popen([sys.executable, __file__, str(rank), f"{folder}/store"]) for rank in range(2)]
            sys.exit(max(each.wait() for each in both))
