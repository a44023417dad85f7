"""Keeps PyTorch's rendezvous store on loopback. `muster run` puts this folder on PYTHONPATH, so Python imports the module at its start.

Rank 0 hosts a TCPStore, which listens on every address of the machine and obeys every client. PyTorch has no setting for this. But a
store accepts a socket that is already bound (`master_listen_fd`), in PyTorch 2.6 as in 2.15. This module therefore passes such a socket
to each store on loopback, also in the user's programs and under torchrun.

This module hides a `sitecustomize` of the user, so it runs that one too.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TORCH = "torch.distributed"


class _StoreFinder(MetaPathFinder):
    """Finds torch.distributed as Python does, and changes its store after the import."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != TORCH:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                store = getattr(module, "TCPStore", None)  # torch may be built without it
                if store is not None and "master_listen_fd" in (store.__init__.__doc__ or ""):  # a command may run an older torch
                    keep_on_loopback(store)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def keep_on_loopback(store: Any) -> None:
    """Makes stores of this class listen only on loopback if their address is loopback. Other stores do not change."""
    create = store.__init__

    def create_on_loopback(
        self: Any, host_name: str, port: int, world_size: int | None = None, is_master: bool = False, *rest: Any, **options: Any
    ) -> None:
        has_listener = len(rest) > 3 or options.get("master_listen_fd") is not None
        listener = _bound_on_loopback(host_name, port) if is_master and not has_listener else None
        if listener is not None:
            options["master_listen_fd"], port = listener
        create(self, host_name, port, world_size, is_master, *rest, **options)

    store.__init__ = create_on_loopback


def _bound_on_loopback(host: str, port: int) -> tuple[int, int] | None:
    """The descriptor and port of a socket that is bound to the port, or to any free port if it is 0.

    None if the host is not loopback, or if the port is in use. In the second case PyTorch reports that itself, or shares the store of this
    process at that port.
    """
    import socket
    from ipaddress import ip_address

    try:
        address = socket.gethostbyname(host)
        if not ip_address(address).is_loopback:
            return None
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            bound = listener.getsockname()[1]
            return listener.detach(), bound
    except OSError:
        return None


def _run_hidden() -> None:
    """Runs the sitecustomize that Python would have found without this folder."""
    here = __file__.rpartition("/")[0]
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != here])
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        hidden = ModuleType("sitecustomize")
        hidden.__spec__, hidden.__file__ = spec, spec.origin
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)


sys.meta_path.insert(0, _StoreFinder())
if __name__ == "sitecustomize":
    _run_hidden()
