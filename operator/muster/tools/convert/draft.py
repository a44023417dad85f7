"""A first job file for a program, from what the program imports and calls. The program is parsed, and not run. Pure."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.tools.convert.job import ConvertError

_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_CALLBACKS = {"transformers": "transformers_callback", "lightning": "lightning_callback", "keras": "keras_callback"}
_STRATEGIES = {
    "ParameterServerStrategy": "ParameterServer",
    "MultiWorkerMirroredStrategy": "MultiWorkerMirrored",
    "TF_CONFIG": "MultiWorkerMirrored",
    "FullyShardedDataParallel": "FSDP",
    "fully_shard": "FSDP",
}
"""Names and texts in a program that decide the strategy, the most decisive first."""
_JOINS = ("init_process_group", "DistributedDataParallel", "LOCAL_RANK", "WORLD_SIZE")
_FRAMEWORKS = {"jax": "JAX", "tensorflow": "OneDevice", "keras": "OneDevice"}


@dataclass(frozen=True)
class Found:
    """The strategy that a program fits, why, and what its author should know."""

    strategy: str
    because: str
    workers: int = 2
    notes: tuple[str, ...] = ()


def found_in(source: str, name: str) -> Found:
    """What the program needs. Raises ConvertError if it is no Python program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConvertError(
            f"is not a Python program: {error}; --from takes the file that you would start with torchrun or python"
        ) from None
    seen = _Seen()
    seen.visit(tree)
    strategy, evidence = _strategy(seen)
    notes = [
        f"Add muster_training.{callback}() to the callbacks, so that the job saves and resumes: docs/libraries.md."
        for library, callback in _CALLBACKS.items()
        if library in seen.modules and callback not in seen.words
    ]
    if not evidence:
        notes.append(f"{name} does not call init_process_group, so each worker would train alone: it gets one worker.")
    if not notes and "muster_training" not in seen.modules:
        notes.append("After a failure the program starts over, unless it saves with muster_training: docs/own-loop.md.")
    because = f"{name} {evidence}" if evidence else "it is the usual one"
    return Found(strategy, because, workers=2 if evidence and strategy != "OneDevice" else 1, notes=tuple(notes))


def _strategy(seen: _Seen) -> tuple[str, str]:
    """The strategy, and what in the program speaks for it. Empty if nothing does."""
    for word, strategy in _STRATEGIES.items():
        if word in seen.words:
            return strategy, f"has {word}"
    for library in (*_CALLBACKS, "accelerate"):
        if library in seen.modules and library != "keras":
            return "DDP", f"imports {library}"
    for word in _JOINS:
        if word in seen.words:
            return "DDP", f"has {word}"
    for library, strategy in _FRAMEWORKS.items():
        if library in seen.modules:
            return strategy, f"imports {library}"
    return "DDP", ""


@dataclass
class _Seen(ast.NodeVisitor):
    """The modules that a program imports, and its names and texts."""

    modules: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)

    def visit_Import(self, node: ast.Import) -> None:
        self.modules |= {_library(each.name) for each in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.modules.add(_library(node.module or ""))
        self.words |= {each.name for each in node.names}

    def visit_Name(self, node: ast.Name) -> None:
        self.words.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.words.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.words.add(node.value)


def _library(module: str) -> str:
    library = module.partition(".")[0]
    return "lightning" if library == "pytorch_lightning" else library


def draft(name: str, found: Found, *, script: str | None, workers: int) -> str:
    """A job file with comments. Without a `script`, it trains the bundled task digits."""
    trainer = (
        [f"script: {_quoted(shlex.quote(script))}   # as `python {shlex.quote(script)}`; words may follow, such as --epochs 3"]
        if script is not None
        else ["task: digits   # or script: train.py, module: my_model.py, command: [torchrun, train.py]", "settings: {epochs: 5}"]
    )
    roles = (
        ["chief: {}", f"worker: {{replicas: {workers}}}", "ps: {}"]
        if found.strategy == "ParameterServer"
        else [f"worker: {{replicas: {workers}}}   # as many on this machine as on a cluster"]
    )
    lines = [
        *(f"# {note}" for note in found.notes),
        "# Check it: muster validate FILE. Train here: muster run FILE. On a cluster: muster submit FILE --code FOLDER.",
        "apiVersion: muster.dev/v1beta1",
        "kind: TrainingJob",
        "metadata:",
        f"  name: {_quoted(name)}",
        "spec:",
        f"  strategy: {found.strategy}   # because {found.because}; docs/strategies.md has the others",
        "  trainer:",
        *(f"    {line}" for line in trainer),
        "  roles:",
        *(f"    {line}" for line in roles),
        *_REST,
    ]
    return "\n".join(lines) + "\n"


_REST: Sequence[str] = (
    "  checkpoint:",
    "    gracePeriodSeconds: 60   # how long a save may take when the job is stopped",
    "    # storage: {persistentVolumeClaim: {claimName: checkpoints}}   # on a cluster; without it, a job starts over after most failures",
    "  # recovery: {application: {limit: 3}}   # restarts after errors of the program",
)


def _quoted(text: str) -> str:
    """The text as YAML: as it is if it is plain."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
