"""The `muster` command. A sub-command is imported when it is used, so that each pays only for what it needs."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from muster.api.problems import InvalidJobError
from muster_contract.environment import DEBUG
from muster_contract.text import escape_on_output, printable

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Job files": {
        "init": "muster.cli.init:init",
        "validate": "muster.cli.validate:validate",
        "convert": "muster.cli.convert:convert",
        "render": "muster.cli.render:render",
        "schema": "muster.cli.schema:schema",
    },
    "Start a job": {
        "run": "muster.cli.run:run",
        "submit": "muster.cli.jobs:submit",
    },
    "See what a job does": {
        "get": "muster.cli.jobs:get",
        "watch": "muster.cli.watching:watch",
        "logs": "muster.cli.watching:logs",
        "explain": "muster.cli.jobs:explain",
        "report": "muster.cli.report:report",
        "ui": "muster.cli.ui:ui",
        "debug-dump": "muster.cli.watching:debug_dump",
    },
    "Change a job": {
        "suspend": "muster.cli.jobs:suspend",
        "resume": "muster.cli.jobs:resume",
        "restart": "muster.cli.jobs:restart",
        "scale": "muster.cli.jobs:scale",
        "delete": "muster.cli.jobs:delete",
    },
    "Measure": {
        "plan": "muster.cli.plan:plan",
        "compare": "muster.cli.compare:compare",
        "bench-collectives": "muster.cli.bench_collectives:bench_collectives",
    },
    "Set up": {"completion": "muster.cli.completion:completion"},
}
COMMANDS: Mapping[str, str] = {name: place for group in GROUPS.values() for name, place in group.items()}

BAD_CONFIGURATION = 11
INTERNAL_ERROR = 1


class LazyGroup(click.Group):
    """A group whose commands are those of COMMANDS; a command whose package is not installed is left out."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        try:
            command: Any = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            return None
        return command if isinstance(command, click.Command) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, 3)
            ctx.fail(f"there is no command {printable(name)}; " + (f"did you mean {' or '.join(near)}?" if near else "see muster --help"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            commands = {name: self.get_command(ctx, name) for name in group}
            rows = [(name, command.get_short_help_str(limit=sys.maxsize)) for name, command in commands.items() if command is not None]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="muster-training", message="muster %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error. It may also follow the command.")
def cli(debug: bool) -> None:
    """Runs distributed training jobs on Kubernetes and on a laptop, and gets them finished."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and end with its exit code: 2 for a wrong command line, 11 for a job that cannot run as written."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    escape_on_output()
    if debug:
        os.environ[DEBUG] = "1"  # the processes of a local run show more as well
    try:
        code = cli.main([argument for argument in given if argument != "--debug"], prog_name=_program(), standalone_mode=False)
    except click.ClickException as error:
        _show_traceback(debug)
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Aborted.", err=True)
        sys.exit(130)
    except InvalidJobError as error:
        _show_traceback(debug)
        click.echo(str(error), err=True)
        sys.exit(BAD_CONFIGURATION)
    except Exception as error:  # noqa: BLE001 (whatever it is, a user gets one sentence)
        _show_traceback(debug)
        click.echo(f"muster: {type(error).__name__}: {printable(str(error))}; this is a fault of Muster's, --debug shows where", err=True)
        sys.exit(INTERNAL_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


def _program() -> str:
    """The name under which the user calls this program, because it is also a plug-in of kubectl."""
    return "kubectl muster" if Path(sys.argv[0]).name.startswith("kubectl-") else "muster"


def _show_traceback(debug: bool) -> None:
    if debug:
        traceback.print_exc()
