"""`muster ui`: all jobs as web pages."""

from __future__ import annotations

import asyncio
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.on_jobs import cluster_options
from muster.cli.pages import history_storage
from muster.cli.refusal import RefusalError

if TYPE_CHECKING:
    from muster.tools.report.storage import Storage

_Folder = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--runs", type=_Folder, default=Path("runs"), show_default=True, help="Folder with run directories of this machine.")
@click.option(
    "--history",
    metavar="FOLDER|s3://...",
    help="The checkpoint storage, for full curves and for jobs that are deleted: its folder, or s3://bucket/prefix.",
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Begin with the jobs of all namespaces.")
@click.option("--no-cluster", is_flag=True, help="Only local runs.")
@click.option("--port", type=click.IntRange(0, 65535), default=7788, show_default=True, help="0 takes a free one.")
@click.option("--open", "open_browser", is_flag=True, help="Show the page in a browser.")
@click.option("--sign-in", is_flag=True, help="For a Deployment: users sign in with tokens of the cluster. The chart sets this.")
@click.option("--listen", default="127.0.0.1", help="With --sign-in: the address to listen on. Empty: all.")
@click.option("--api-server", default="https://kubernetes.default.svc", help="With --sign-in: the address of the API server.")
@click.option("--authority", type=click.Path(dir_okay=False), help="With --sign-in: the file with the API server's certificates.")
@click.option("--certificate", type=_Folder, help="With --sign-in: the folder with tls.crt and tls.key, for HTTPS.")
@cluster_options
def ui(
    *,
    runs: Path,
    history: str | None,
    everywhere: bool,
    no_cluster: bool,
    port: int,
    open_browser: bool,
    sign_in: bool,
    listen: str,
    api_server: str,
    authority: str | None,
    certificate: Path | None,
    target: tuple[str | None, ...],
) -> None:
    """Serves web pages with all jobs, until Ctrl-C.

    The page of a job has its attempts, curves, use of time, explanation and logs. The server listens on this machine only, and prints
    its address, which has a random token.
    """
    from muster.client.connection import Target
    from muster.client.errors import ClientError
    from muster.tools.ui.serving import Own, serve_own, serve_users
    from muster.tools.ui.sessions import UserSessions

    def opened(address: str) -> None:
        click.echo(f"Serving {address}")
        if open_browser:
            webbrowser.open(address)

    storage = history_storage(history)
    try:
        if storage is not None:
            _try(storage, must=not sign_in)
        if sign_in:
            sessions = UserSessions(server=api_server, authority=authority, history=storage, clock=time.monotonic)
            asyncio.run(serve_users(sessions, host=listen, port=port, certificate=certificate, opened=opened))
        else:
            own = Own(runs, None if no_cluster else Target(*target), everywhere, storage)
            asyncio.run(serve_own(own, port=port, opened=opened))
    except ClientError as error:
        raise RefusalError(str(error), error.code) from error
    except OSError as error:
        fault = f"{error.filename or f'port {port}'}: {error.strerror}"
        raise RefusalError(f"the page cannot be served: {fault}; see --port and --certificate", 1) from error


def _try(storage: Storage, *, must: bool) -> None:
    """Raises RefusalError if the storage cannot be listed. If `must` is False, prints a line instead, because the storage may come back."""
    try:
        storage.names()
    except OSError as error:
        message = f"--history {storage}: {error.strerror or error}"
        if must:
            raise RefusalError(message, 1) from error
        click.echo(message, err=True)
