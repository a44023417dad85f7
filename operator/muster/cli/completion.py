"""Shell completion: `muster completion`, and the program with which kubectl completes `kubectl muster`."""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

_NO_FILES = ":4"
"""Cobra's directive: these are all candidates, offer no file names."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Prints a script that completes commands, options and job names in SHELL.

    \b
    bash: source <(muster completion bash)
    zsh:  source <(muster completion zsh)
    fish: muster completion fish | source
    """
    from muster.cli.main import cli

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(cli, {}, "muster", "_MUSTER_COMPLETE").source())


def for_kubectl() -> None:
    """The program `kubectl_complete-muster`: candidates for its last argument, one on each line, then cobra's directive.

    Source: "Extend kubectl with plugins" in the Kubernetes documentation, and the protocol of cobra's __complete.
    """
    from muster.cli.main import cli

    *words, incomplete = sys.argv[1:] or [""]
    items = ShellComplete(cli, {}, "kubectl muster", "").get_completions(words, incomplete)
    for item in items:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)
