"""Failures of a program that no retry repairs, as its output shows them: a missing module, file or command, or wrong arguments. Pure.

Only what is certain is here. Each row is what interpreters and argument parsers print by themselves, with its exit code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from muster_trainer.supervisor.output_tail import Reading

START_SECONDS = 120.0
"""How long after its start a process may still be importing its modules and reading its arguments."""

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_NOT_FOUND = "write a program on PATH, or the path of one"
_INSTALL = "install it in the image, or add its folder to PYTHONPATH"

_Sentence = Callable[[re.Match[str]], str]

LAST_LINES: tuple[tuple[int, re.Pattern[str], _Sentence], ...] = (
    # (exit code, the last line that was printed, the sentence about it)
    (
        2,
        re.compile(r"\S*python[\w.]*: can't open file '(.+)': \[Errno \d+\] (.+)"),
        lambda match: f"Python cannot open the program {match[1]}: {match[2]}",
    ),
    (1, re.compile(r"\S*python[\w.]*: can't find '__main__' module in '(.+)'"), lambda match: f"{match[1]} is no Python program"),
    (
        1,
        re.compile(r"\S*python[\w.]*: No module named ([\w.]+)(.*)"),
        lambda match: f"the module '{match[1]}' is missing{match[2]}; {_INSTALL}",
    ),
    (
        1,
        re.compile(r"\S*python[\w.]*: Error while finding module specification for '(.+)' \(ModuleNotFoundError: .*\)"),
        lambda match: f"the module '{match[1]}' is missing; {_INSTALL}",
    ),
    (
        127,
        re.compile(r"(?:\S+: )+(?:line \d+: )?['‘]?(.+?)['’]?: (?:(?:command )?not found|No such file or directory)"),
        lambda match: f"the program '{match[1]}' is not found; {_NOT_FOUND}",
    ),
    (
        126,
        re.compile(r"(?:\S+: )+(?:line \d+: )?['‘]?(.+?)['’]?: Permission denied"),
        lambda match: f"the program '{match[1]}' may not be executed; give it the permission, or name its interpreter first",
    ),
    (
        2,
        re.compile(r"\S*sh: (?:\d+: )?[Cc]a(?:n't|nnot) open '?(.+?)'?(?:: No such file.*)?"),
        lambda match: f"there is no file {match[1]}",
    ),
)

PARSERS: tuple[tuple[int, re.Pattern[str], re.Pattern[str], _Sentence], ...] = (
    # (exit code, a line that shows that arguments were parsed, the complaint, the sentence about it)
    (2, re.compile(r"usage: "), re.compile(r"(\S.*?): error: (.+)"), lambda match: f"{match[1]} does not take these arguments: {match[2]}"),
    (2, re.compile(r"Usage: "), re.compile(r"Error: (.+)"), lambda match: f"the program does not take these arguments: {match[1]}"),
    (
        1,
        re.compile(r"FATAL Flags parsing error:"),
        re.compile(r"\s+(Unknown command line flag .+|flag .+)"),
        lambda match: f"the program does not take these arguments: {match[1]}",
    ),
)


def permanent_failure(reading: Reading, code: int) -> str | None:
    """What is missing or wrong, in one sentence; None where the failure may be any other. `code` is what the program ended with."""
    code = reading.root_cause.code if reading.root_cause else code
    if reading.chain is not None:
        return _missing_module(reading, code)
    printed = [line for line in reading.lines if line.strip()]
    if not printed:
        return None
    for expected, pattern, sentence in LAST_LINES:
        if code == expected and (match := pattern.fullmatch(printed[-1])):
            return sentence(match)
    return _arguments(printed, code)


def _missing_module(reading: Reading, code: int) -> str | None:
    """A module that is missing while the program is still importing. Later, and within functions, it may be anything."""
    match = _MISSING_MODULE.match(reading.message)
    if code != 1 or match is None or reading.chain is None or not reading.chain.at_import:
        return None
    return f"the module '{match[1]}' is missing; {_INSTALL}"


def _arguments(printed: Sequence[str], code: int) -> str | None:
    for expected, shows, complaint, sentence in PARSERS:
        if code == expected and any(shows.match(line) for line in printed):
            for line in reversed(printed):
                if match := complaint.fullmatch(line):
                    return sentence(match)
    return None
