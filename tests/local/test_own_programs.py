"""Programs of users under `muster run`: their environment, and the classes of their failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_jobs import LocalJob, job
from tests.support.presets import preset

DUMP = """
import json, os, sys
import torch.distributed
elastic = torch.distributed.is_torchelastic_launched()
path = f"{sys.argv[1]}-{os.environ['RANK']}.json"
with open(path, "w") as file:
    json.dump({"elastic": elastic, "environ": dict(os.environ)}, file)
"""
NOT_SET = {
    "TORCHELASTIC_ERROR_FILE": "a worker writes its exception there for torchrun, and Muster reads it from the output",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "a setting that torchrun hands on to itself",
}
"""Variables of torchrun's that a script of Muster's does not get, with the reason."""
SAME = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK")
"""Variables whose values are the same as well, beside others that are named below."""


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    return LocalJob(tmp_path)


def environ_of(local_job: LocalJob, name: str, rank: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((local_job.folder / f"{name}-{rank}.json").read_text())
    return document


@pytest.mark.torch
def test_a_script_gets_every_variable_that_torchrun_sets(local_job: LocalJob) -> None:
    (local_job.folder / "dump.py").write_text(DUMP)
    bare = {"PATH": os.environ["PATH"], "HOME": str(local_job.folder)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "dump.py", "torchrun"]
    subprocess.run(torchrun, cwd=local_job.folder, env=bare, capture_output=True, timeout=120, check=True)
    local_job.write(job(trainer={"script": "dump.py muster"}, roles={"worker": {"replicas": 1, "processesPerReplica": 2}}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    for rank in (0, 1):
        theirs, ours = environ_of(local_job, "torchrun", rank), environ_of(local_job, "muster", rank)
        assert theirs["elastic"]
        assert ours["elastic"]
        set_by_torchrun = theirs["environ"].keys() - bare.keys() - {"LC_CTYPE"}  # Python's own
        assert set_by_torchrun - ours["environ"].keys() <= NOT_SET.keys()
        assert {name: ours["environ"][name] for name in SAME} == {name: theirs["environ"][name] for name in SAME}
        assert ours["environ"]["ROLE_WORLD_SIZE"] == theirs["environ"]["ROLE_WORLD_SIZE"] == "2"
        assert ours["environ"]["TORCHELASTIC_RESTART_COUNT"] == theirs["environ"]["TORCHELASTIC_RESTART_COUNT"] == "0"


def test_the_restart_count_of_a_script_is_its_attempt_and_references_see_the_attempts_values(local_job: LocalJob) -> None:
    (local_job.folder / "train.py").write_text(
        "import os, sys\n"
        "print('ATTEMPT', os.environ['TORCHELASTIC_RESTART_COUNT'], *sys.argv[1:], os.environ['MASTER_PORT'], flush=True)\n"
        "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 2)\n"
    )
    local_job.write(job(trainer={"script": "train.py $(MUSTER_ATTEMPT) $(RANK) $(MASTER_PORT)"}, replicas=1))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    lines = [line.split()[1:] for line in local_job.logs().splitlines() if line.startswith("ATTEMPT")]
    assert [(count, attempt, rank) for count, attempt, rank, _, _ in lines] == [("0", "0", "0"), ("1", "1", "0"), ("2", "2", "0")]
    assert [given for *_, given, _ in lines] == [real for *_, real in lines]


@pytest.mark.parametrize("supervisor", ["Auto", "Disabled"])
def test_references_in_a_command_are_expanded_as_in_a_pod(local_job: LocalJob, supervisor: str) -> None:
    command = ["sh", "-c", 'echo "WORDS $0 $1 $2 $3"', "$(RANK)/$(WORLD_SIZE)", "$(OWN)", "$$(RANK)", "$(NONE)"]
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "OWN", "value": "two words"}]}]}}
    roles = {"worker": {"replicas": 2, "template": template}}
    local_job.write(job(trainer={"command": command, "supervisor": supervisor}, roles=roles))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    words = sorted(line for line in local_job.logs().splitlines() if line.startswith("WORDS"))
    assert words == [f"WORDS {rank}/2 two words $(RANK) $(NONE)" for rank in (0, 1)]


@pytest.mark.parametrize(
    ("trainer", "named"),
    [
        pytest.param({"script": "train.py"}, "the module 'missing_one' is missing", id="a module"),
        pytest.param({"script": "parse.py --epochs 3"}, "unrecognized arguments: --epochs 3", id="an argument"),
        pytest.param({"command": ["sh", "-c", "no-such-program"]}, "the program 'no-such-program' is not found", id="a program"),
        pytest.param({"command": ["python", "nowhere.py"]}, "nowhere.py: No such file or directory", id="a file"),
    ],
)
def test_what_no_retry_mends_ends_the_job_at_once(local_job: LocalJob, trainer: dict[str, Any], named: str) -> None:
    (local_job.folder / "train.py").write_text("import missing_one\n")
    (local_job.folder / "parse.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    local_job.write(job(trainer=trainer))
    code, output = local_job.muster_run("job.yaml")
    assert code == 11, output
    assert named in output
    (attempt,) = local_job.status["attempts"]
    assert attempt["reason"] == "BadConfiguration"


def test_a_module_that_goes_missing_after_steps_were_done_has_the_budget_of_a_failure(local_job: LocalJob) -> None:
    (local_job.folder / "train.py").write_text(
        "import json, os, time\n"
        "step = {'event': 'step', 'time': time.time(), 'rank': 0, 'step': 1, 'loss': '1'}\n"
        "os.write(int(os.environ['MUSTER_EVENTS_FD']), (json.dumps(step) + '\\n').encode())\n"
        "import missing_one\n"
    )
    local_job.write(job(trainer={"script": "train.py"}, replicas=1, recovery={"application": {"limit": 1}}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 10, output
    assert [attempt["reason"] for attempt in local_job.status["attempts"]] == ["UserError", "UserError"]


@pytest.mark.torch
def test_the_termination_message_of_a_torchrun_are_the_error_of_its_worker(local_job: LocalJob) -> None:
    (local_job.folder / "train.py").write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise SystemExit('boom: the data is not there')\ntime.sleep(100)\n"
    )
    roles = {"worker": {"replicas": 1, "processesPerReplica": 2}}
    local_job.write(job(trainer={"command": ["torchrun", "train.py"]}, roles=roles, recovery={"application": {"limit": 0}}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 10, output
    (attempt,) = local_job.status["attempts"]
    assert attempt["message"].endswith("rank 1: boom: the data is not there")


def test_a_program_gets_the_variables_and_the_processes_of_its_preset(local_job: LocalJob) -> None:
    env = [{"name": "NCCL_DEBUG", "value": "INFO"}]
    small = preset(
        "small",
        template={"spec": {"containers": [{"name": "trainer", "env": env}]}},
        roles={"worker": {"resources": {"limits": {"nvidia.com/gpu": 2}}}},
    )
    local_job.write(small, "small.yaml")
    local_job.write(job(replicas=1, preset="small", trainer={"command": ["sh", "-c", "echo $NCCL_DEBUG $PET_NPROC_PER_NODE > given"]}))
    code, output = local_job.muster_run("job.yaml", "--presets", "small.yaml")
    assert code == 0, output
    assert (local_job.folder / "given").read_text() == "INFO 2\n"
