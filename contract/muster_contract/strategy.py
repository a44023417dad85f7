"""The description of a strategy and its framework for a replica. The operator sends it in MUSTER_TRAINER, under `strategy`.

So the trainer has no table of strategies. It imports an engine from the package that the descriptor names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Framework:
    """A machine-learning framework.

    Values of `process_environment` may refer to variables of the process as `$(NAME)`, as in the command of a container. The
    supervisor sets `MUSTER_RANK` and `MUSTER_LOCAL_RANK` for each process before it fills them in.
    """

    name: str
    """The name in its official spelling, such as "PyTorch". An installation's trainer images are listed by this name."""
    package: str
    """The package with the trainer's code for it, such as "muster_trainer.pytorch". Its modules are the bundled tasks, `export`, and
    optionally `host`."""
    modules: tuple[str, ...] = ()
    """Import names, such as ("torch",). A process whose innermost frame is in one of them waits inside the framework."""
    preload: tuple[str, ...] = ()
    """Modules that the warm parent imports besides the engine's."""
    process_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that each training process has in addition to those of its container."""
    default_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of each training process that the user may set otherwise."""
    quiet_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that shorten the log of the framework. Muster's own processes set them if the user does not, unless MUSTER_DEBUG is 1."""
    world_variables: tuple[str, ...] = ()
    """Variables that make a process join a world. A process without them trains alone."""
    peer_lost: tuple[str, ...] = ()
    """Regular expressions. One of them matches the end of the output of a process that failed because it lost a peer."""


@dataclass(frozen=True)
class RoleRuntime:
    """What the processes of a role do instead of training. Paths have the form "package.module:name"."""

    program: str | None = None
    """A callable (TrainerSpec, Events, StopRequest) -> ExitCode that the process runs instead of the training loop."""
    takes_over: bool = False
    """Whether the program also runs in a job with a script or command, in place of that. It may start that by itself."""
    first_index: int = 0
    """Replicas with a lower index train; those from this index on run the program."""
    evaluation: str | None = None
    """The engine that evaluates commits while the other roles train."""


@dataclass(frozen=True)
class StrategyRuntime:
    """The part of a strategy that a replica needs. Paths have the form "package.module:name"."""

    name: str
    framework: Framework
    engine: str | None = None
    """The factory of the engine of a training process. None if the strategy runs only programs of the user and those of `roles`."""
    collectives: str | None = None
    """The factory of the measurements of the task `collectives`. None if the strategy has no collectives."""
    roles: Mapping[str, RoleRuntime] = field(default_factory=dict)
    """Roles that do something other than training, by name."""
