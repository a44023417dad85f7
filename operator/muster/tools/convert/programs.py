"""The program in a command line: what torchrun, mpirun, srun and a shell are told, and what they start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster.tools.convert.job import ENTRYPOINT, Conversion, ConvertError

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?$")
_TORCHRUN = re.compile(r"(?:.*/)?torchrun$")
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_TORCHRUN_SWITCHES = ("standalone", "m", "module", "no-python", "run-path", "use-env")
_MPIRUN = re.compile(r"(?:.*/)?(?:mpirun|mpiexec|orterun)$")
_MPIRUN_VALUES: Mapping[str, int] = {
    **dict.fromkeys(
        ("np", "n", "c", "N", "npernode", "bind-to", "map-by", "rank-by", "host", "H", "hostfile", "machinefile", "x", "ppn"), 1
    ),
    **dict.fromkeys(("wdir", "wd", "prefix", "tag", "timeout", "report-uri", "output-filename", "hosts", "f", "genvlist", "iface"), 1),
    **dict.fromkeys(("mca", "gmca", "pmixmca", "prtemca", "env", "genv"), 2),
}
"""Flags of mpirun, and the number of words that follow each."""
_SRUN = re.compile(r"(?:.*/)?srun$")
_SRUN_VALUES = frozenset(
    [
        "n",
        "ntasks",
        "N",
        "nodes",
        "c",
        "cpus-per-task",
        "J",
        "job-name",
        "w",
        "nodelist",
        "p",
        "partition",
        "t",
        "time",
        "G",
        "gpus",
        "o",
        "output",
        "e",
        "error",
        "A",
        "account",
        "mpi",
        "cpu-bind",
        "gpu-bind",
        "ntasks-per-node",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "mem",
        "mem-per-cpu",
        "export",
        "chdir",
        "D",
        "container-image",
        "container-mounts",
    ]
)
"""Flags of srun with a value, which may be a word of its own."""


@dataclass
class Program:
    """What a command line starts. `processes` is the number in each replica (None: not said), `total` that in the world."""

    words: list[str]
    processes: int | str | None = None
    nodes: str | None = None
    restarts: int | None = None
    total: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    launcher: str = ""


def without_launcher(words: Sequence[str]) -> Program:
    """The program below srun, mpirun and torchrun."""
    program = Program(list(words))
    for read in (_srun, _mpirun, _torchrun):
        program = read(program)
    return program


def write(job: Conversion, program: Program, args: Sequence[str] = ()) -> None:
    """Writes the program into `trainer`, as a script if Python runs a file, and as a command otherwise."""
    words = [*program.words]
    if not words:
        job.set("trainer.command", [ENTRYPOINT])
        message = f"write the program of the image in place of {ENTRYPOINT}; the file does not name it"
        job.note("spec.trainer.command", message, first=True)
        if args:
            job.set("trainer.args", list(args))
        return
    interpreter = bool(_PYTHON.match(words[0]))
    rest = words[1:] if interpreter else words
    while interpreter and rest and rest[0] in ("-u", "-B"):
        rest = rest[1:]
    below_torchrun = program.launcher == "torchrun" and not interpreter
    if not rest or rest[0].startswith("-") or not (interpreter or (below_torchrun and rest[0].endswith(".py"))):
        job.set("trainer.command", words)
        if args:
            job.set("trainer.args", list(args))
        return
    given = [*rest[1:], *args]
    job.set("trainer.script", shlex.quote(rest[0]))
    if given:
        job.set("trainer.args", given)


def split(text: str, where: str) -> list[str]:
    """The words of a line for a shell. Raises ConvertError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConvertError(f"{where}: {text!r} cannot be split into words: {error}") from None


def _flags(rest: list[str], count: Callable[[str], int]) -> Iterator[tuple[str, list[str]]]:
    """Takes the flags from the front of `rest`: the name of each, and its values. `count` says how many words of their own these are."""
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        yield name, [value] if equals else [rest.pop(0) for _ in range(count(name)) if rest]


def _torchrun(program: Program) -> Program:
    words = program.words
    if words and _TORCHRUN.match(words[0]):
        rest = words[1:]
    elif len(words) > 2 and _PYTHON.match(words[0]) and "-m" in words[:3] and words[words.index("-m") + 1] in _LAUNCH_MODULES:
        rest = words[words.index("-m") + 2 :]
    else:
        return program
    program.launcher, as_module = "torchrun", False
    for spelled, values in _flags(rest, lambda name: name.replace("_", "-") not in _TORCHRUN_SWITCHES):
        name, value = spelled.replace("_", "-"), "".join(values)
        as_module = as_module or name in ("m", "module")
        if name == "nproc-per-node":
            program.processes = int(value) if value.isdecimal() else value
        elif name == "nnodes":
            program.nodes = value
        elif name == "max-restarts" and value.isdecimal():
            program.restarts = int(value)
    program.words = ["python3", "-m", *rest] if as_module else rest
    return program


def _mpirun(program: Program) -> Program:
    words = program.words
    if not words or not _MPIRUN.match(words[0]):
        return program
    rest = words[1:]
    program.launcher = "mpirun"
    for name, values in _flags(rest, lambda name: _MPIRUN_VALUES.get(name, 0)):
        match name, values:
            case "np" | "n" | "c", [number] if number.isdecimal():
                program.total = int(number)
            case "x", [variable] if "=" in variable:
                key, _, text = variable.partition("=")
                program.variables[key] = text
            case "env" | "genv", [key, text]:
                program.variables[key] = text
            case "mca", [key, text]:
                program.variables[f"OMPI_MCA_{key}"] = text
    program.words = rest
    return program


def _srun(program: Program) -> Program:
    words = program.words
    if not words or not _SRUN.match(words[0]):
        return program
    rest = words[1:]
    program.launcher = "srun"
    for _ in _flags(rest, lambda name: name in _SRUN_VALUES):
        pass
    program.words = rest
    return program


def names_in(words: Sequence[str], variables: Collection[str]) -> list[str]:
    """Which of the variables a command line uses."""
    text = " ".join(words)
    return [name for name in variables if re.search(rf"\$\{{?{re.escape(name)}\b", text)]
