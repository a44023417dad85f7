"""Real processes that read a TF_CONFIG which is too long for the environment of any program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.api.spec import TrainingJobSpec
from muster.render.addresses import ClusterAddresses
from muster.render.environment import world_environment
from muster.strategies.registry import strategy_of
from muster_contract.environment import LARGE_VARIABLES
from muster_contract.large_variables import LONGEST, size, unpack
from tests.support.supervisors import Coordinator, SupervisorRun

REPLICAS = 4096
SCRIPT = """
import json, os, subprocess, sys
import sibling
config = os.environ["TF_CONFIG"]
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals(), "the script is the main module"
assert "MUSTER_LARGE_VARIABLES" not in os.environ
child = subprocess.run([sys.executable, "-c", "import os; print('TF_CONFIG' in os.environ)"], capture_output=True, text=True, check=True)
print(json.dumps([len(config), json.loads(config)["task"], sys.argv[1:], sibling.NAME, child.stdout.strip()]))
"""
MODULE = """
import os
print("length", len(os.environ["TF_CONFIG"]))
raise SystemExit
"""


@pytest.fixture(scope="module")
def world() -> dict[str, str]:
    """The rendered variables of a replica of MultiWorkerMirrored."""
    spec = TrainingJobSpec.model_validate(
        {"strategy": "MultiWorkerMirrored", "trainer": {"script": "train.py"}, "roles": {"worker": {"replicas": REPLICAS}}}
    )
    strategy = strategy_of(spec.strategy)
    plan = strategy.plan(spec)
    rendered = world_environment(
        spec, plan.replicas[7], strategy=strategy, plan=plan, attempt=3, addresses=ClusterAddresses("digits", "default")
    )
    assert size("TF_CONFIG", unpack(rendered)["TF_CONFIG"]) > LONGEST
    return rendered


def test_a_script_reads_a_long_variable_and_starts_other_programs(run: SupervisorRun, world: dict[str, str]) -> None:
    (run.folder / "sibling.py").write_text("NAME = 'sibling'\n")
    run.script.write_text(SCRIPT)
    trainer = entry(run, script=f"{run.script} --rate 0.1")
    assert run.start(MUSTER_TRAINER=trainer, **{LARGE_VARIABLES: world[LARGE_VARIABLES]}).wait() == 0, run.err.read_text()
    length, task, arguments, name, child = json.loads(run.out.read_text())
    assert length == len(unpack(world)["TF_CONFIG"])
    assert task == {"type": "worker", "index": 7}
    assert (arguments, name, child) == (["--rate", "0.1"], "sibling", "False")


def test_the_bundled_trainer_reads_a_long_variable(run: SupervisorRun, world: dict[str, str]) -> None:
    (run.folder / "probe.py").write_text(MODULE)
    run.start(MUSTER_TRAINER=entry(run, module="probe"), **{LARGE_VARIABLES: world[LARGE_VARIABLES]})
    assert run.wait() == 10, "the module ends the process, which is an error of the user's code"
    assert f"length {len(unpack(world)['TF_CONFIG'])}" in run.out.read_text()


def test_a_command_is_not_started_with_a_long_variable(run: SupervisorRun, world: dict[str, str]) -> None:
    run.start(command=["true"], **{LARGE_VARIABLES: world[LARGE_VARIABLES]})
    assert run.wait() == 11
    assert "spec.trainer.command" in run.termination_message()["message"]


def test_the_packed_variables_of_an_attempt_end_with_it(run: SupervisorRun, coordinator: Coordinator, world: dict[str, str]) -> None:
    """An elastic job may become so small that the next world has a short TF_CONFIG."""
    source = """
import os, time
print(os.environ["MUSTER_ATTEMPT"], len(os.environ["TF_CONFIG"]), flush=True)
time.sleep(600 if os.environ["MUSTER_ATTEMPT"] == "3" else 0)
"""
    coordinator.reply["graceSeconds"] = 0.1
    run.start(source, MUSTER_COORDINATOR=coordinator.url, **{LARGE_VARIABLES: world[LARGE_VARIABLES]})
    run.printed(f"3 {len(unpack(world)['TF_CONFIG'])}")
    coordinator.reply |= {"attempt": 4}
    coordinator.wait_for_report(lambda report: report.get("waiting"))
    coordinator.reply |= {"world": {"MUSTER_ATTEMPT": "4", "TF_CONFIG": "{}"}}
    run.printed("4 2")
    coordinator.reply |= {"end": True, "succeeded": True}
    assert run.wait() == 0


def entry(run: SupervisorRun, **entry: Any) -> str:
    """MUSTER_TRAINER of a replica with this entry."""
    return run.environment(processes=1, entry=entry, grace=20)["MUSTER_TRAINER"]
