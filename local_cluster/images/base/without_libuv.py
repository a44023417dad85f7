# The base image's Dockerfile puts this at the end of torch/distributed/__init__.py.
# Debian builds torch without libuv, and torchrun's store asks for it whatever USE_LIBUV says.
import sys

from torch._C._distributed_c10d import TCPStore as _TCPStore


class TCPStore(_TCPStore):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{**options, "use_libuv": False})


sys.modules["torch.distributed.rendezvous"].TCPStore = TCPStore  # it took the other one when it was imported above
