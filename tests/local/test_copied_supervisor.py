"""The copy of the supervisor for images of users, in a root file system without a C library, Python or shell."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster_contract.environment import LARGE_VARIABLES, STATUS_TOKEN, STATUS_URL, STATUS_VARIABLES, TRACKER_VARIABLES, WANDB_RUN_ID
from muster_contract.large_variables import LONGEST, pack
from tests.support.supervisors import DEADLINE, SupervisorRun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="images are of Linux")

COPY = Path("/muster")
SHOWS = "import json, os; print(json.dumps([dict(os.environ), os.getppid(), os.getcwd()]))"
WAITS = "import time; print('ready', flush=True); time.sleep(600)"


def command(folder: Path) -> list[str]:
    """The command, as the renderer writes it into a pod."""
    lib = f"{folder}/lib"
    return [f"{lib}/ld.so", "--inhibit-cache", "--library-path", lib, f"{folder}/bin/python", "-I", "-S"]


def copied(folder: Path) -> None:
    for _ in range(2):  # a kubelet may run an init container again
        copying = [sys.executable, "-m", "muster_trainer.supervisor.copying", str(folder)]
        subprocess.run(copying, check=True, timeout=120)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    copied(folder)
    return folder


@pytest.fixture(scope="module")
def empty_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with the copy and mount points."""
    root = tmp_path_factory.mktemp("root")
    copied(root / "muster")
    for name in ("dev", "proc", "run", "tmp"):
        (root / name).mkdir()
    return root


def contract(run: SupervisorRun, entry: dict[str, Any], **changed: str) -> dict[str, str]:
    """The environment of a replica in an image that sets nothing."""
    given = run.environment(processes=1, entry=entry, grace=5)
    return {name: value for name, value in given.items() if name not in ("PATH", "PYTHONPATH")} | changed


def start_in(root: Path, run: SupervisorRun, entry: dict[str, Any], **changed: str) -> SupervisorRun:
    """Start the supervisor as PID 1 with this root."""
    files = {"MUSTER_STATE_DIR": "/run/state", "MUSTER_TERMINATION_LOG": "/run/termination-log"}
    run.log = root / "run" / "termination-log"
    run.log.unlink(missing_ok=True)
    inside = ["chroot", str(root), *command(COPY), "-m", "muster_trainer.supervisor"]
    shell = f'mount -t proc proc "{root}/proc" && mount --rbind /dev "{root}/dev" && exec "$@"'
    namespaces = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "--pid", "--fork", "--kill-child"]
    path = f"{os.environ['PATH']}:/usr/sbin"
    # The tools that make the root need a PATH; the container gets none.
    clean = ["env", "-i", *(f"{name}={value}" for name, value in contract(run, entry, **files, **changed).items())]
    whole = [*namespaces, "sh", "-c", shell, "sh", *clean, f"PATH={path}", *inside]
    probe = subprocess.run([*namespaces, "sh", "-c", shell, "sh", "true"], capture_output=True, text=True, timeout=DEADLINE, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this machine does not allow a root of one's own: {probe.stderr.strip()}")
    with run.out.open("wb") as out, run.err.open("wb") as err:
        run.popen = subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    return run


def start(copy: Path, run: SupervisorRun, entry: dict[str, Any], **changed: str) -> SupervisorRun:
    """Start the supervisor on this machine's own root."""
    with run.out.open("wb") as out, run.err.open("wb") as err:
        argv = [*command(copy), "-m", "muster_trainer.supervisor"]
        env = contract(run, entry, **changed)
        run.popen = subprocess.Popen(argv, env=env, cwd=run.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    return run


def test_it_runs_a_command_as_pid_1_of_an_image_that_has_nothing(empty_root: Path, run: SupervisorRun) -> None:
    start_in(empty_root, run, {"command": [*command(COPY), "-c", SHOWS]})
    assert run.wait() == 0, run.err.read_text()
    assert run.termination_message()["code"] == 0
    _, parent, _ = json.loads(run.out.read_text())
    assert parent == 1


def test_it_reports_how_a_command_failed_there(empty_root: Path, run: SupervisorRun) -> None:
    start_in(empty_root, run, {"command": [*command(COPY), "-c", "raise SystemExit('no such data')"]})
    assert run.wait() == 10
    assert (run.termination_message()["exitCode"], "no such data" in run.termination_message()["message"]) == (1, True)


def test_it_hands_a_request_to_stop_on(empty_root: Path, run: SupervisorRun) -> None:
    start_in(empty_root, run, {"command": [*command(COPY), "-c", WAITS]})
    run.printed("ready")
    [supervisor] = [each for each in run.members() if each.ppid() == run.pid]
    supervisor.send_signal(signal.SIGTERM)
    assert run.wait() in (21, 22)
    assert run.termination_message()["reason"].startswith("Preempted")


def test_a_script_needs_a_python_of_the_image(empty_root: Path, run: SupervisorRun) -> None:
    start_in(empty_root, run, {"script": "train.py"})
    assert run.wait() == 11
    assert run.termination_message()["message"].startswith("spec.trainer.script: ")


def test_programs_get_the_environment_of_the_image_as_it_is(copy: Path, run: SupervisorRun) -> None:
    given = {"PATH": "/usr/bin:/bin", "HOME": str(run.folder), "USER": "me", "PYTHONHOME": "/image", "LD_LIBRARY_PATH": "/image/lib"}
    start(copy, run, {"command": ["env", "-0"]}, **given)
    assert run.wait() == 0, run.err.read_text()
    variables = dict(variable.split("=", 1) for variable in run.out.read_text().rstrip("\0\n").split("\0"))
    assert all(variables.pop(f"MUSTER_EVENTS_{name}") for name in ("FD", "ADDRESS", "TOKEN"))
    assert variables.pop("PYTHONPATH") == str(copy / "programs")
    added = {name for name in variables if name in STATUS_VARIABLES | TRACKER_VARIABLES}
    assert added >= {STATUS_URL, STATUS_TOKEN, WANDB_RUN_ID}
    assert {name: value for name, value in variables.items() if name not in added} == contract(run, {"command": ["env", "-0"]}, **given)


def test_programs_get_a_home_that_they_can_write(copy: Path, run: SupervisorRun) -> None:
    start(copy, run, {"command": ["sh", "-c", 'echo "home $HOME"']}, PATH="/usr/bin:/bin", HOME="/nowhere")
    assert run.wait() == 0
    assert "home /tmp\n" in run.out.read_text()


def python_for(folder: Path, *options: str) -> str:
    """A PATH that leads to this machine's Python, as an image would have it."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    python = bin_folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(options)} "$@"\n')
    python.chmod(0o755)
    return f"{bin_folder}:/usr/bin:/bin"


def test_a_script_reads_a_variable_that_is_too_long_for_any_program(copy: Path, run: SupervisorRun, tmp_path: Path) -> None:
    run.script.write_text("import os, sys; print(len(os.environ['TF_CONFIG']), sys.path[0])")
    packed = pack({"TF_CONFIG": "x" * LONGEST})[LARGE_VARIABLES]
    start(copy, run, {"script": str(run.script)}, PATH=python_for(tmp_path), MUSTER_LARGE_VARIABLES=packed)
    assert run.wait() == 0, run.err.read_text()
    assert run.out.read_text().split() == [str(LONGEST), str(run.folder)]


def test_a_script_of_a_config_map_finds_its_files_and_may_write_beside_them(copy: Path, run: SupervisorRun, tmp_path: Path) -> None:
    config_map, work = tmp_path / "map", tmp_path / "work"
    (config_map / "..2026").mkdir(parents=True)
    work.mkdir(mode=0o700)
    (config_map / "..data").symlink_to("..2026")
    source = (
        "import json, os, pathlib, sys, helper\n"
        "pathlib.Path('made.txt').write_text(pathlib.Path('data.txt').read_text())\n"
        "print(json.dumps([sys.executable, os.environ['PYTHONPATH'], helper.__file__, sys.argv[1:], 'MUSTER_CODE' in os.environ]))\n"
    )
    for name, text in {"train.py": source, "helper.py": "", "data.txt": "numbers"}.items():
        (config_map / "..2026" / name).write_text(text)
        (config_map / name).symlink_to(f"..data/{name}")
    run.folder = work
    given = {"PATH": python_for(tmp_path), "PYTHONPATH": "/image", "MUSTER_CODE": str(config_map), "HOME": str(work)}
    start(copy, run, {"script": "train.py --rate 0.1"}, **given)
    assert run.wait() == 0, run.err.read_text()
    executable, path, helper, arguments, told = json.loads(run.out.read_text().partition("] ")[2] or run.out.read_text())
    assert executable == sys.executable
    assert path == os.pathsep.join([str(work), "/image", str(copy / "programs")])
    assert helper == str(work / "helper.py")
    assert (arguments, told) == (["--rate", "0.1"], False)
    assert work.stat().st_mode & 0o777 == 0o700  # in a pod it belongs to root
    assert (work / "made.txt").read_text() == "numbers"
    assert sorted(each.name for each in work.iterdir() if not each.name.startswith("__")) == [
        "data.txt",
        "helper.py",
        "made.txt",
        "train.py",
    ]


def test_a_program_of_an_image_with_another_python_can_import_the_library(copy: Path, run: SupervisorRun, tmp_path: Path) -> None:
    python = python_for(tmp_path, "-S")  # no package of this machine
    run.script.write_text(
        "import muster_training as muster\n"
        "muster.report(step=3, total=9, loss=0.5)\n"
        "with muster.checkpoint(3) as folder: (folder / 'state').touch()\n"
        "print(muster.__file__, muster.environment())\n"
    )
    start(copy, run, {"script": str(run.script)}, PATH=python, HOME=str(tmp_path))
    assert run.wait() == 0, run.err.read_text()
    assert f"{copy}/programs/muster_training/__init__.py Environment(rank=0, world=1, attempt=3, inside=True" in run.out.read_text()
    assert run.termination_message()["step"] == 3


@pytest.mark.parametrize("entry", [{"task": "digits"}, {"module": "my.model"}])
def test_a_task_or_module_needs_an_image_with_the_trainer(copy: Path, run: SupervisorRun, tmp_path: Path, entry: dict[str, str]) -> None:
    start(copy, run, entry, PATH=python_for(tmp_path, "-I", "-S"), HOME=str(tmp_path))
    assert run.wait() == 11
    [field] = entry
    assert run.termination_message()["message"].startswith(f"spec.trainer.{field}: ")


def test_a_bundled_task_runs_in_an_image_with_the_trainer(copy: Path, run: SupervisorRun, tmp_path: Path) -> None:
    start(copy, run, {"task": "no-such-task"}, PATH=python_for(tmp_path), HOME=str(tmp_path))
    assert run.popen is not None
    run.popen.wait(180)  # it imports the framework
    assert run.wait() == 11
    assert "no-such-task" in run.termination_message()["message"]
