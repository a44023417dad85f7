"""The commands, files and outputs of a page of the documentation, and their execution."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0
"""The longest time that a command may take."""
_FENCE = re.compile(r"```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w-]+\.yaml)`")
_NUMBER = re.compile(r"\d[\d,.]*(?::\d\d)*")
_OPTIONAL = ("running: step", "pending:", "starting:", "running: all replicas")
"""Lines of progress. How many there are depends on the speed of the machine."""


@dataclass(frozen=True)
class Command:
    """A command with the lines of output that the page shows. There may be none."""

    text: str
    shown: tuple[str, ...]
    interrupted: bool = False
    """Whether its comment says that Ctrl-C ends it."""


@dataclass(frozen=True)
class File:
    """A file that the page asks the reader to write."""

    name: str
    content: str


def steps(page: Path) -> Iterator[Command | File]:
    """The instructions of the page, in order. The name of a YAML file is the last one in backticks before it."""
    text = page.read_text()
    end = 0
    for block in _FENCE.finditer(text):
        language, content = block.groups()
        if language == "yaml":
            names = _FILE.findall(text[end : block.start()])
            assert names, f"{page.name}: a YAML block without the name of its file: {content[:60]}"
            yield File(names[-1], content)
        elif language == "":
            yield from _commands(content)
        end = block.end()


def _commands(content: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", content.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        text, _, comment = command.partition("  #")
        yield Command(text.strip(), tuple(output), "Ctrl-C" in comment)


def assert_as_shown(command: Command, output: str) -> None:
    """Checks that each line of the page is in the output, in order. Numbers may differ, and progress may have fewer or more lines."""
    lines = iter(output.splitlines())
    for shown in command.shown:
        if not shown.startswith(_OPTIONAL):
            assert any(re.fullmatch(_pattern(shown), line.rstrip()) for line in lines), (
                f"$ {command.text}\n{output}\nhas no line like: {shown}"
            )
    for shown in command.shown:
        if shown.startswith("running: step"):
            assert any(re.fullmatch(_pattern(shown), line.rstrip()) for line in output.splitlines()), f"{output}\nhas no line like: {shown}"
            break


def _pattern(line: str) -> str:
    return r"[\d,.:]+( s)?".join(re.escape(part) for part in re.split(rf"{_NUMBER.pattern}(?: s)?", line.rstrip()))


def run(command: Command, folder: Path, env: Mapping[str, str], *, interrupt_at: str | None = None) -> str:
    """Runs the command in a shell. Presses Ctrl-C once its output has `interrupt_at`. Returns the output. A command without Ctrl-C must
    end with 0."""
    log = folder / "tutorial-output.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.text}" if interrupt_at else command.text],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stopped = False
    try:
        deadline = time.monotonic() + SECONDS
        while process.poll() is None:
            assert time.monotonic() < deadline, f"$ {command.text} has not ended: {log.read_text()}"
            if interrupt_at and interrupt_at in log.read_text():
                process.send_signal(signal.SIGINT)
                interrupt_at, stopped = None, True
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    output = log.read_text()
    assert not interrupt_at, f"$ {command.text} ended too early: {output}"
    assert stopped or process.returncode == 0, f"$ {command.text} ended with {process.returncode}: {output}"
    return output
