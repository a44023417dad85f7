"""Finds, in the output of a program, failures that a retry cannot repair: a missing module, file or command, wrong arguments, or an error
in its source.

It includes only certain cases. Each row of the tables is a message that an interpreter or argument parser prints, with its exit code. The
functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from muster_trainer.supervisor.output_tail import Reading

START_SECONDS = 120.0
"""The longest time after its start in which a process may still import its modules and parse its arguments."""

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_WRITE_PATH = "write a program on PATH, or the path of one"
_NO_INPUT = "EOFError: EOF when reading a line"
_INSTALL = "install it in the image, or add its folder to PYTHONPATH"

_BUG = re.compile(
    r"(?:NameError|UnboundLocalError|SyntaxError|IndentationError|TabError): |ImportError: cannot import name |AttributeError: module "
)
"""Errors of Python about the source of a program, which is the same in each attempt."""

_Sentence = Callable[[re.Match[str]], str]

LAST_LINES: tuple[tuple[int, re.Pattern[str], _Sentence], ...] = (
    # (exit code, pattern of the last line, message)
    (
        2,
        re.compile(r"(?:.*\s)?\S*python[\w.]*: can't open file '(.+)': \[Errno \d+\] (.+)"),
        lambda match: f"Python cannot open the program {match[1]}: {match[2]}",
    ),
    (
        1,
        re.compile(r"(?:.*\s)?\S*python[\w.]*: can't find '__main__' module in '(.+)'"),
        lambda match: f"{match[1]} is not a Python program",
    ),
    (
        1,
        re.compile(r"(?:.*\s)?\S*python[\w.]*: No module named ([\w.]+)(.*)"),
        lambda match: f"the module '{match[1]}' is missing{match[2]}; {_INSTALL}",
    ),
    (
        1,
        re.compile(r"(?:.*\s)?\S*python[\w.]*: Error while finding module specification for '(.+)' \(ModuleNotFoundError: .*\)"),
        lambda match: f"the module '{match[1]}' is missing; {_INSTALL}",
    ),
    (
        127,
        re.compile(r"(?:\S+: )+(?:line \d+: )?.*\\r'{1,2}: (?:command not found|No such file or directory)"),
        lambda _: "lines of the shell script end with CRLF; save the file with LF",
    ),
    (
        127,
        re.compile(r"(?:\S*/)?env: use -\[v\]S to pass options in shebang lines"),
        lambda _: "the interpreter in the first line of the script is not found; save the file with LF if its lines end with CRLF",
    ),
    (
        127,
        re.compile(r"(?:\S+: )+(?:line \d+: )?['‘]?(.+?)['’]?: (?:(?:command )?not found|No such file or directory)"),
        lambda match: f"the program '{match[1]}' is not found; {_WRITE_PATH}",
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
    # (exit code, pattern of a line that shows that arguments were parsed, pattern of the error, message)
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
    """A message about the part that is missing or wrong; None if the failure may be another one. `code` is the program's exit code."""
    code = reading.root_cause.code if reading.root_cause else code
    if reading.chain is not None:
        return _missing_module(reading, code) or _bug(reading, code)
    printed = [line for line in reading.lines if line.strip()]
    if not printed:
        return None
    for expected, pattern, sentence in LAST_LINES:
        if code == expected and (match := pattern.fullmatch(printed[-1])):
            return sentence(match)
    return _arguments(printed, code)


def _missing_module(reading: Reading, code: int) -> str | None:
    """A message about a missing module, if the program was still importing. A later failed import, in a function, is not certain."""
    match = _MISSING_MODULE.match(reading.message)
    if code != 1 or match is None or reading.chain is None or not reading.chain.at_import:
        return None
    return f"the module '{match[1]}' is missing; {_INSTALL}"


def _bug(reading: Reading, code: int) -> str | None:
    """A message about an error in the program that each attempt would raise again."""
    if code != 1 or reading.chain is None or len(reading.chain.raised) > 1:  # a handler of another error may have the bug
        return None
    if reading.message.startswith(_NO_INPUT):
        return f"the program waits for input, and has none ({_NO_INPUT}); pass arguments instead"
    where = f" ({reading.chain.frame})" if reading.chain.frame else ""
    return f"{reading.message}{where}" if _BUG.match(reading.message) else None


def _arguments(printed: Sequence[str], code: int) -> str | None:
    for expected, shows, complaint, sentence in PARSERS:
        if code == expected and any(shows.match(line) for line in printed):
            for line in reversed(printed):
                if match := complaint.fullmatch(line):
                    return sentence(match)
    return None
