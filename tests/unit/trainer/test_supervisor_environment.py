"""Which processes a replica starts, and with what environment."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from muster_trainer.contract import BadConfiguration, BatchSpec, InputSpec, ReplicaEnv, TrainerSpec
from muster_trainer.supervisor.environment import Launch, plan

BASE = {
    "MUSTER_JOB": "default/digits",
    "MUSTER_JOB_UID": "uid",
    "MUSTER_JOB_CREATED": "2026-11-21T11:16:14Z",
    "MUSTER_STRATEGY": "DDP",
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
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "10.0.0.1",
    "PET_MASTER_PORT": "29500",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "2",
}
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def spec(**entry: Any) -> TrainerSpec:
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
    )


def launches(environ: Mapping[str, str], **entry: Any) -> list[Launch]:
    return plan(environ, ReplicaEnv.from_environment(environ), spec(**entry))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [("0", "0", "2", "1", "0", "10.0.0.1", "29500")], id="one process, first node"),
        pytest.param({"PET_NODE_RANK": "1"}, [("1", "0", "2", "1", "1", "10.0.0.1", "29500")], id="one process, second node"),
        pytest.param(
            {"MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1", "WORLD_SIZE": "4"},
            [("2", "0", "4", "2", "1", "10.0.0.1", "29500"), ("3", "1", "4", "2", "1", "10.0.0.1", "29500")],
            id="two processes, second node",
        ),
        pytest.param(
            {"MUSTER_PROCESSES": "2", "PET_NODE_RANK": "1", "WORLD_SIZE": "7", "MUSTER_FIRST_RANK": "5"},
            [("5", "0", "7", "2", "1", "10.0.0.1", "29500"), ("6", "1", "7", "2", "1", "10.0.0.1", "29500")],
            id="nodes of different sizes",
        ),
    ],
)
def test_pytorch_processes_get_what_torchrun_would_set(changes: dict[str, str], expected: list[tuple[str, ...]]) -> None:
    found = launches({**BASE, **TORCH, **changes})
    assert [tuple(launch.env[name] for name in TORCHRUN) for launch in found] == expected
    assert [launch.rank for launch in found] == [int(row[0]) for row in expected]


def test_the_pet_address_serves_where_no_master_address_is_set() -> None:
    environ = {name: value for name, value in {**BASE, **TORCH}.items() if not name.startswith("MASTER_")}
    (launch,) = launches(environ)
    assert (launch.env["MASTER_ADDR"], launch.env["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_a_task_starts_the_bundled_trainer_with_the_users_own_variables_kept() -> None:
    (launch,) = launches({**BASE, **TORCH})
    assert launch.argv == (sys.executable, "-m", "muster_trainer.process")
    assert launch.env["OWN"] == "kept"


def test_tensorflow_starts_one_process_with_its_cluster_as_it_is() -> None:
    environ = {**BASE, "MUSTER_STRATEGY": "MultiWorkerMirrored", "MUSTER_INDEX": "1", "TF_CONFIG": '{"cluster": {}}'}
    (launch,) = launches(environ)
    assert launch.rank == 1
    assert launch.env["TF_CONFIG"] == '{"cluster": {}}'
    assert "RANK" not in launch.env


def test_a_script_is_started_once_per_process_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("print('hello')\n")
    environ = {**BASE, **TORCH, "MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2"}
    found = launches(environ, script=f"'{script}' --lr 0.1")
    assert [launch.argv for launch in found] == [(sys.executable, str(script), "--lr", "0.1")] * 2


def test_a_command_is_started_once_and_as_it_is_whatever_the_number_of_processes() -> None:
    environ = {**BASE, **TORCH, "MUSTER_PROCESSES": "2", "PET_NPROC_PER_NODE": "2"}
    (launch,) = launches(environ, command=("sh", "-c", "torchrun train.py"))
    assert launch.argv == ("sh", "-c", "torchrun train.py")
    assert launch.env == environ


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"PET_NODE_RANK": "-1"}, "PET_NODE_RANK"),
        ({"PET_NODE_RANK": "2"}, "WORLD_SIZE: 2 is too small"),
        ({"MASTER_ADDR": "", "PET_MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({"MUSTER_STRATEGY": "Magic"}, "MUSTER_STRATEGY: 'Magic' is no strategy"),
        ({"MUSTER_PROCESSES": "0"}, "MUSTER_PROCESSES"),
        ({"MUSTER_JOB_CREATED": "yesterday"}, "MUSTER_JOB_CREATED"),
    ],
)
def test_a_wrong_variable_is_named(changes: dict[str, str], told: str) -> None:
    with pytest.raises(BadConfiguration, match=told):
        launches({**BASE, **TORCH, **changes})


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (None, "there is no file"),
        (b"def f(:\n  pass\n", r"train\.py:1: "),
        (b"x = 1\nreturn x\n", r"train\.py:2: 'return' outside function"),
        (b"x = '\0'\n", "train.py"),
        (b"# coding: nonsense\n", "train.py"),
    ],
)
def test_a_script_that_cannot_run_is_refused_before_it_starts(tmp_path: Path, source: bytes | None, told: str) -> None:
    script = tmp_path / "train.py"
    if source is not None:
        script.write_bytes(source)
    with pytest.raises(BadConfiguration, match=told):
        launches({**BASE, **TORCH}, script=str(script))


def test_only_python_files_are_checked_for_python_syntax(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("def f(:\n")
    assert launches({**BASE, **TORCH}, script=str(script))


@pytest.mark.parametrize("script", ["'unclosed", "   "])
def test_a_script_that_is_no_command_line_is_refused(script: str) -> None:
    with pytest.raises(BadConfiguration, match=r"trainer\.script"):
        launches({**BASE, **TORCH}, script=script)


def test_a_command_whose_program_is_not_there_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="'no-such-program' is not found"):
        launches({**BASE, **TORCH}, command=("no-such-program", "x"))
