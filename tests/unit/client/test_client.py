"""The Python client without a cluster: its names, its two forms, its loop, and its errors."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import muster
from muster.client.background import BackgroundLoop
from tests.support.texts import absent
from tests.support.waiting import wait_until


def test_import_muster_imports_nothing_else() -> None:
    code = "import sys, muster; assert not {'pydantic', 'kubernetes', 'aiohttp', 'asyncio', 'muster.api'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_every_public_name_is_imported_on_use_and_visible_to_type_checkers() -> None:
    [block] = [node for node in ast.parse(Path(muster.__file__).read_text()).body if isinstance(node, ast.If)]
    typed = {(each.module, alias.asname) for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert typed == {(module, name) for module, names in muster._MODULES.items() for name in names}
    for _, name in typed:
        assert getattr(muster, name or "") is not None
    with pytest.raises(AttributeError, match="has no attribute 'Clinet'"):
        _ = muster.Clinet


@pytest.mark.parametrize(("sync", "asynchronous"), [(muster.Client, muster.AsyncClient), (muster.Job, muster.AsyncJob)])
def test_both_clients_have_the_same_methods_and_arguments(sync: type, asynchronous: type) -> None:
    names = {name for name, value in vars(asynchronous).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert names <= set(dir(sync))
    for name in names:
        method = getattr(sync, name)
        if isinstance(method, property):
            continue
        assert list(inspect.signature(method).parameters) == list(inspect.signature(getattr(asynchronous, name)).parameters), name
        assert inspect.getdoc(method), name


def test_an_unknown_backend_and_options_of_another_one_are_refused() -> None:
    with pytest.raises(muster.RefusedError, match=r"^backend: .*cluster or local"):
        muster.Client(backend="slurm")  # type: ignore[arg-type]
    with pytest.raises(muster.RefusedError, match="are for clusters"):
        muster.Client(backend="local", namespace="team")
    with pytest.raises(muster.RefusedError, match="are for backend='local'"):
        muster.Client(detach=True)


def test_a_missing_kubeconfig_is_an_error_of_the_first_call(tmp_path: Path) -> None:
    with muster.Client(kubeconfig=str(tmp_path / "missing")) as client, pytest.raises(muster.NoClusterError, match="does not exist"):
        client.list()


def test_the_error_without_the_kubernetes_package_names_it() -> None:
    code = "import sys; sys.modules['kubernetes'] = None; import muster; muster.Client()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert absent(ended.stderr.splitlines()[-1], "ClientError", "pip install '.[cluster]'") == []


async def _count(closed: threading.Event, *, up_to: int = 1_000_000) -> AsyncGenerator[int, None]:
    try:
        for number in range(up_to):
            await asyncio.sleep(0)
            yield number
    finally:
        closed.set()


def test_the_loop_gives_results_and_errors_to_threads_and_to_running_loops() -> None:
    loop, closed = BackgroundLoop(), threading.Event()

    async def fail() -> None:
        raise LookupError("here")

    async def in_a_notebook() -> list[int]:
        return list(loop.iterate(_count(threading.Event(), up_to=3)))

    assert asyncio.run(in_a_notebook()) == [0, 1, 2]
    with pytest.raises(LookupError, match="here"):
        loop.run(fail())
    items = loop.iterate(_count(closed))
    assert (next(items), next(items)) == (0, 1)
    items.close()
    assert closed.wait(60)
    loop.end(lambda: asyncio.sleep(0))
    with pytest.raises(muster.ClientError, match="the client is closed"):
        loop.run(fail())


def test_an_unused_client_ends_its_thread() -> None:
    def threads() -> int:
        return sum(thread.name == "muster-client" for thread in threading.enumerate())

    before = threads()
    client = muster.Client()
    assert threads() == before + 1
    del client
    gc.collect()
    wait_until(lambda: threads() == before, "the thread to end")


def test_the_code_of_the_page_runs_and_uses_existing_names() -> None:
    """Blocks that need a cluster or train are compiled only."""
    page = Path(__file__).resolve().parents[3] / "docs/client.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        code = compile(block, str(page), "exec")
        if not block.startswith(("# needs a cluster", "# trains")):
            exec(code, names)
    used = re.findall(r"\bmuster\.([A-Za-z_]+)", page.read_text())
    assert all(hasattr(muster, name) for name in used if name not in ("dev", "md"))
