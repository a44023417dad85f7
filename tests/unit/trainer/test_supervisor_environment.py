"""The processes that a replica starts, and their environment."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster_contract.environment import ReplicaEnvironment, expanded
from muster_contract.errors import BadConfiguration
from muster_contract.strategy import RoleRuntime
from muster_contract.trainer_spec import BatchSpec, InputSpec, TrainerSpec
from muster_trainer.supervisor.environment import Launch, plan
from tests.support import descriptors

BASE = {
    "MUSTER_JOB": "default/digits",
    "MUSTER_JOB_UID": "uid",
    "MUSTER_JOB_CREATED": "2026-11-21T11:16:14Z",
    "MUSTER_STRATEGY": "DDP",
    "MUSTER_TRAINER": "{}",
    "MUSTER_ROLE": "worker",
    "MUSTER_INDEX": "0",
    "MUSTER_ATTEMPT": "0",
    "MUSTER_PROCESSES": "1",
    "MUSTER_POD_NAME": "digits-worker-0",
    "MUSTER_POD_UID": "pod-uid",
    "PATH": "/usr/bin:/bin",
    "OWN": "kept",
}
TORCH = {
    "MUSTER_FIRST_RANK": "0",
    "MUSTER_WORLD_SIZE": "2",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "10.0.0.1",
    "PET_MASTER_PORT": "29500",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "2",
}
TWO_OF_FOUR = {
    "MUSTER_PROCESSES": "2",
    "MUSTER_FIRST_RANK": "2",
    "MUSTER_WORLD_SIZE": "4",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "1",
    "WORLD_SIZE": "4",
}
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def spec(strategy: str, **entry: Any) -> TrainerSpec:
    nothing: dict[str, Any] = {"task": None, "module": None, "script": None, "command": None}
    return TrainerSpec(
        **{**nothing, **(entry or {"task": "digits"})},
        config={},
        batch=BatchSpec(global_size=8),
        input=InputSpec(),
        options={},
        communication="Auto",
        checkpoint=None,
        grace_seconds=30,
        strategy=descriptors.runtime(strategy),
    )


def launches(environ: Mapping[str, str], **entry: Any) -> list[Launch]:
    return plan(environ, ReplicaEnvironment.from_environment(environ), spec(environ["MUSTER_STRATEGY"], **entry))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [("0", "0", "2", "1", "0", "10.0.0.1", "29500")], id="one process, first node"),
        pytest.param(
            {"PET_NODE_RANK": "1", "MUSTER_FIRST_RANK": "1"},
            [("1", "0", "2", "1", "1", "10.0.0.1", "29500")],
            id="one process, second node",
        ),
        pytest.param(
            TWO_OF_FOUR,
            [("2", "0", "4", "2", "1", "10.0.0.1", "29500"), ("3", "1", "4", "2", "1", "10.0.0.1", "29500")],
            id="two processes, second node",
        ),
        pytest.param(
            {**TWO_OF_FOUR, "WORLD_SIZE": "7", "MUSTER_WORLD_SIZE": "7", "MUSTER_FIRST_RANK": "5"},
            [("5", "0", "7", "2", "1", "10.0.0.1", "29500"), ("6", "1", "7", "2", "1", "10.0.0.1", "29500")],
            id="nodes of different sizes",
        ),
    ],
)
def test_pytorch_processes_get_the_variables_of_torchrun(changes: dict[str, str], expected: list[tuple[str, ...]]) -> None:
    planned = launches({**BASE, **TORCH, **changes})
    assert [tuple(launch.env[name] for name in TORCHRUN) for launch in planned] == expected
    assert [launch.rank for launch in planned] == [int(row[0]) for row in expected]


def test_a_task_starts_the_bundled_trainer_with_the_variables_of_the_user() -> None:
    (launch,) = launches({**BASE, **TORCH})
    assert launch.argv == (sys.executable, "-P", "-m", "muster_trainer.process")
    assert launch.env["OWN"] == "kept"


@pytest.mark.parametrize("entry", [{"script": "train.py"}, {"command": ("/bin/true",)}, {"task": "digits"}])
@pytest.mark.parametrize(("takes_over", "index"), [(True, 0), (True, 1), (False, 1)])
def test_a_program_of_the_role_may_take_the_place_of_the_users_own(entry: dict[str, Any], takes_over: bool, index: int) -> None:
    launcher = RoleRuntime(program="own:launch", first_index=1, takes_over=takes_over)
    environ = {**BASE, **TORCH, "MUSTER_ROLE": "launcher", "MUSTER_INDEX": str(index)}
    described = spec("DDP", **entry)
    described = replace(described, strategy=replace(described.strategy, roles={"launcher": launcher}))
    runs = index == 1 and (takes_over or described.is_bundled)
    assert described.program_of("launcher", index) == ("own:launch" if runs else None)
    assert described.program_of("worker", 1) is None
    if runs:
        [launch] = plan(environ, ReplicaEnvironment.from_environment(environ), described)
        assert launch.argv[-2:] == ("-m", "muster_trainer.process")


def test_tensorflow_starts_one_process_with_an_unchanged_cluster() -> None:
    environ = {**BASE, "MUSTER_STRATEGY": "MultiWorkerMirrored", "MUSTER_INDEX": "1", "TF_CONFIG": '{"cluster": {}}'}
    (launch,) = launches(environ)
    assert launch.rank == 1
    assert launch.env["TF_CONFIG"] == '{"cluster": {}}'
    assert "RANK" not in launch.env


def test_a_script_is_started_once_per_process_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("print('hello')\n")
    environ = {**BASE, **TORCH, "MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2"}
    planned = launches(environ, script=f"'{script}' --lr 0.1")
    assert [launch.argv for launch in planned] == [(sys.executable, str(script), "--lr", "0.1")] * 2


def test_a_command_is_started_once_for_any_number_of_processes() -> None:
    environ = {**BASE, **TORCH, "MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2"}
    (launch,) = launches(environ, command=("sh", "-c", "torchrun train.py"))
    assert launch.argv == ("sh", "-c", "torchrun train.py")
    assert launch.env == environ


def test_pytorch_processes_get_the_variables_of_an_elastic_launcher(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    environ = {**BASE, **TORCH, **TWO_OF_FOUR}
    for launch in launches({**environ, "MUSTER_ATTEMPT": "7"}, script=str(script)):
        assert launch.env["TORCHELASTIC_RUN_ID"] == "uid"
        assert launch.env["TORCHELASTIC_RESTART_COUNT"] == "7"
        assert int(launch.env["TORCHELASTIC_MAX_RESTARTS"]) > 7
        assert launch.env["GROUP_WORLD_SIZE"] == "2"
        assert (launch.env["ROLE_NAME"], launch.env["ROLE_RANK"], launch.env["ROLE_WORLD_SIZE"]) == ("default", launch.env["RANK"], "4")


def test_several_processes_of_a_script_get_one_thread_each_by_default(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    environ = {**BASE, **TORCH, "MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2"}
    assert [launch.env["OMP_NUM_THREADS"] for launch in launches(environ, script=str(script))] == ["1", "1"]
    assert [launch.env["OMP_NUM_THREADS"] for launch in launches({**environ, "OMP_NUM_THREADS": "3"}, script=str(script))] == ["3", "3"]
    assert "OMP_NUM_THREADS" not in launches({**BASE, **TORCH}, script=str(script))[0].env


KUBERNETES = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}
EXPANSIONS = [
    ("$(VAR_A)", "A"),
    ("$(VAR_A)-$(VAR_A)", "A-A"),
    ("$(VAR_A)-1", "A-1"),
    ("___$(VAR_B)___", "___B___"),
    ("___$(VAR_C)", "___C"),
    ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
    ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
    ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
    ("f000-$$VAR_A", "f000-$VAR_A"),
    ("foo\\$(VAR_C)bar", "foo\\Cbar"),
    ("foo\\\\$(VAR_C)bar", "foo\\\\Cbar"),
    ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
    ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
    ("$(VAR_REF)", "$(VAR_A)"),
    ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
    ("foo$(VAR_EMPTY)bar", "foobar"),
    ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
    ("f00__(VAR_A)__", "f00__(VAR_A)__"),
    ("$?_boo_$!", "$?_boo_$!"),
    ("$VAR_A", "$VAR_A"),
    ("$(VAR_DNE)", "$(VAR_DNE)"),
    ("$$$$$$(BAZ_BAR)", "$$$(BAZ_BAR)"),
    ("$$$$$$$(VAR_A)", "$$$A"),
    ("$(VAR_A)$$", "A$"),
    ("$(VAR_A$$", "$(VAR_A$"),
    ("foo$$", "foo$"),
    ("foo$", "foo$"),
    ("$()", "$()"),
    ("", ""),
    ("\n", "\n"),
]


@pytest.mark.parametrize(("text", "expected"), EXPANSIONS)
def test_references_are_expanded_by_the_rules_of_kubernetes(text: str, expected: str) -> None:
    """Cases of third_party/forked/golang/expansion/expand_test.go of Kubernetes."""
    assert expanded(text, KUBERNETES) == expected


def test_a_command_can_use_the_variables_of_its_replica() -> None:
    environ = {**BASE, **TORCH, "RANK": "0", "MUSTER_ATTEMPT": "3"}
    words = ("echo", "$(RANK)/$(WORLD_SIZE)", "$(MASTER_ADDR):$(MASTER_PORT)", "$(MUSTER_ATTEMPT)", "$$(RANK)", "$(NONE)")
    (launch,) = launches(environ, command=words)
    assert launch.argv == ("echo", "0/2", "10.0.0.1:29500", "3", "$(RANK)", "$(NONE)")


def test_the_words_of_a_script_can_use_the_variables_of_each_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    environ = {**BASE, **TORCH, "MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2", "WHERE": f"{tmp_path}", "NAME": "two words"}
    planned = launches(environ, script="$(WHERE)/train.py --rank $(RANK) --name $(NAME)")
    assert [launch.argv[1:] for launch in planned] == [(str(script), "--rank", rank, "--name", "two words") for rank in ("0", "1")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MUSTER_WORLD_SIZE": "two"}, "MUSTER_WORLD_SIZE"),
        ({"WORLD_SIZE": ""}, "^WORLD_SIZE "),
        ({"MUSTER_FIRST_RANK": "-1"}, "MUSTER_FIRST_RANK"),
        ({"MUSTER_FIRST_RANK": "2"}, "MUSTER_WORLD_SIZE: 2 "),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({"MUSTER_PROCESSES": "0"}, "MUSTER_PROCESSES"),
        ({"MUSTER_JOB_CREATED": "yesterday"}, "MUSTER_JOB_CREATED"),
    ],
)
def test_a_wrong_variable_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(BadConfiguration, match=message):
        launches({**BASE, **TORCH, **changes})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "there is no file"),
        (b"def f(:\n  pass\n", r"train\.py:1: "),
        (b"x = 1\nreturn x\n", r"train\.py:2: "),
        (b"x = '\0'\n", "train.py"),
        (b"# coding: nonsense\n", "train.py"),
    ],
)
def test_a_script_that_cannot_run_is_refused_before_it_starts(tmp_path: Path, source: bytes | None, message: str) -> None:
    script = tmp_path / "train.py"
    if source is not None:
        script.write_bytes(source)
    with pytest.raises(BadConfiguration, match=message):
        launches({**BASE, **TORCH}, script=str(script))


def test_only_python_files_are_checked_for_python_syntax(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("def f(:\n")
    assert launches({**BASE, **TORCH}, script=str(script))


@pytest.mark.parametrize("script", ["'unclosed", "   "])
def test_a_script_that_is_not_a_command_line_is_refused(script: str) -> None:
    with pytest.raises(BadConfiguration, match=r"trainer\.script"):
        launches({**BASE, **TORCH}, script=script)


def test_a_command_with_a_missing_program_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="'no-such-program'"):
        launches({**BASE, **TORCH}, command=("no-such-program", "x"))
