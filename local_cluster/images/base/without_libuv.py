# The Dockerfile of the base image appends this to torch/distributed/__init__.py. Debian builds torch without libuv, and torchrun's store
# requires libuv even if USE_LIBUV is off.
import sys

from torch._C._distributed_c10d import TCPStore as _TCPStore


class TCPStore(_TCPStore):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{**options, "use_libuv": False})


sys.modules["torch.distributed.rendezvous"].TCPStore = TCPStore  # this module imported the other class above
