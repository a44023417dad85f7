"""Local launches: from a pod to a process of this machine, and from a job to one that this machine can run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from muster.api.spec import WORKER
from muster.local.errors import ConfigurationError, FieldError
from muster.local.launch import Host, Launch, launch_of
from muster.local.localize import checkpoint_folder, localized, remarks, with_paths, working_directory
from muster.local.overrides import overridden
from muster.local.ports import addresses_for
from muster.local.rundir import RunDirectory, new_run, open_run_directory
from muster.render.environment import Coordinator
from muster.render.images import default_images
from muster.render.manifests import render_replica
from muster.strategies.registry import strategy_of
from tests.support.texts import absent
from tests.unit.local.local_jobs import NOW, job

LOCAL = {"MUSTER_POD_NAME": "tiny-worker-0", "MUSTER_POD_UID": "u", "MUSTER_STATE_DIR": "/runs/0", "MUSTER_TENSORBOARD_DIR": "/runs/tb"}


def launched(environ: dict[str, str] | None = None, *, index: int = 0, **spec: Any) -> Launch:
    wanted = new_run(job(checkpoint={"storage": {"uri": "file:///runs/checkpoints"}}, **spec), NOW)
    addresses, reserved = addresses_for(strategy_of(wanted.spec.strategy).plan(wanted.spec), None)
    with reserved:
        pod = render_replica(
            wanted,
            WORKER,
            index=index,
            attempt=0,
            addresses=addresses,
            images=default_images(),
            coordinator=Coordinator("http://127.0.0.1:1"),
        )
    host = Host(environ if environ is not None else {"PATH": "/bin", "HOME": "/home/me"}, "/venv/bin/python", 8, Path("/jobs"))
    return launch_of(pod, host, local=LOCAL, processes=2)


def test_python_is_this_python_and_its_folder_is_first_on_the_path() -> None:
    launch = launched()
    assert launch.argv == ("/venv/bin/python", "-X", "muster=tiny/worker-0/supervisor", "-P", "-m", "muster_trainer.supervisor")
    assert launch.env["PATH"] == f"/venv/bin{os.pathsep}/bin"


def test_the_folder_of_the_job_file_is_first_on_the_python_path() -> None:
    assert launched().env["PYTHONPATH"] == "/jobs"
    assert launched({"PYTHONPATH": "/mine"}).env["PYTHONPATH"] == f"/jobs{os.pathsep}/mine"


def test_the_settings_of_the_user_override_the_loopback_defaults() -> None:
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "trainer", "command": ["env"], "env": []}]}}
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    environ = {"GLOO_SOCKET_IFNAME": "eth0"}
    host = Host(environ, "/venv/bin/python", 8, Path("/jobs"), defaults=defaults)
    env = launch_of(pod, host, local=LOCAL, processes=2).env
    assert (env["GLOO_SOCKET_IFNAME"], env["TP_SOCKET_IFNAME"]) == ("eth0", "lo")


def test_local_folders_replace_the_folders_of_the_container() -> None:
    env = launched().env
    assert env["MUSTER_STATE_DIR"] == "/runs/0"
    assert env["MUSTER_POD_UID"] == "u"
    assert env["HOME"] == "/home/me"
    assert json.loads(env["MUSTER_TRAINER"])["checkpoint"]["directory"] == "/runs/checkpoints/default/tiny"


def test_only_the_replica_that_writes_summaries_has_their_folder() -> None:
    assert launched(index=0).env["MUSTER_TENSORBOARD_DIR"] == "/runs/tb"
    assert "MUSTER_TENSORBOARD_DIR" not in launched(index=1).env


def test_reserved_variables_of_the_caller_are_not_passed_on() -> None:
    env = launched({"RANK": "7", "TF_CONFIG": "{}", "MUSTER_RUN": "outer", "FREE": "yes"}).env
    assert env.get("RANK") != "7"
    assert "TF_CONFIG" not in env
    assert "MUSTER_RUN" not in env
    assert env["FREE"] == "yes"


def test_threads_are_divided_among_processes_unless_the_user_sets_them() -> None:
    assert launched().env["OMP_NUM_THREADS"] == "4"
    assert launched({"OMP_NUM_THREADS": "3"}).env["OMP_NUM_THREADS"] == "3"


def test_variables_of_the_user_are_expanded_as_in_a_cluster() -> None:
    entries = [
        {"name": "A", "value": "x$$y"},
        {"name": "B", "value": "$(A)-$(NONE)"},
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    template = {"spec": {"containers": [{"name": "trainer", "env": entries}]}}
    config = {"text": "$(A) and $5"}
    launch = launched(trainer={"script": "train.py", "config": config}, roles={"worker": {"replicas": 2, "template": template}})
    assert (launch.env["A"], launch.env["B"], launch.env["WHO"]) == ("x$y", "x$y-$(NONE)", "tiny-worker-0")
    assert json.loads(launch.env["MUSTER_TRAINER"])["config"] == config


def test_ignored_parts_of_a_pod_are_named() -> None:
    entries = [{"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    containers = [{"name": "trainer", "env": entries}, {"name": "sidecar", "image": "i"}]
    launch = launched({"SECRET": "mine"}, roles={"worker": {"replicas": 2, "template": {"spec": {"containers": containers}}}})
    assert launch.env["SECRET"] == "mine"
    assert [sentence for sentence in launch.ignored if "sidecar" in sentence]
    assert [sentence for sentence in launch.ignored if "SECRET" in sentence]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return open_run_directory(tmp_path / "run")


STORAGES = [
    (None, "{run}/checkpoints"),
    ({"persistentVolumeClaim": {"claimName": "ckpt"}}, "{run}/volumes/ckpt"),
    ({"uri": "file:///data/with%20space"}, "/data/with space"),
]


@pytest.mark.parametrize(("storage", "folder"), STORAGES)
def test_storage_becomes_a_folder(directory: RunDirectory, storage: dict[str, Any] | None, folder: str) -> None:
    wanted = job(checkpoint={"storage": storage} if storage else {})
    assert str(checkpoint_folder(wanted, directory)) == folder.format(run=directory.path)


def test_an_object_store_is_used_by_local_runs(directory: RunDirectory) -> None:
    storage = {"uri": "s3://bucket/x", "secretRef": {"name": "keys"}}
    wanted = job(checkpoint={"storage": storage}, trainer={"task": "digits"})
    here = localized(wanted, directory, cwd=Path(), job_file=Path("job.yaml"))
    assert here.spec.checkpoint.storage == wanted.spec.checkpoint.storage
    assert any("secretRef: keys" in line for line in remarks(wanted, gpus=0, job_file=Path("job.yaml")))


def test_storage_on_another_machine_is_refused(directory: RunDirectory) -> None:
    with pytest.raises(FieldError, match=r"^spec\.checkpoint\.storage\.uri: .*file:///path"):
        checkpoint_folder(job(checkpoint={"storage": {"uri": "file://host/x"}}), directory)


def test_programs_are_searched_in_the_working_directory_then_beside_the_job_file(tmp_path: Path, directory: RunDirectory) -> None:
    here, there = tmp_path / "here", tmp_path / "with space"
    here.mkdir()
    there.mkdir()
    (here / "both.py").touch()
    (there / "both.py").touch()
    (there / "beside.py").touch()

    def program(**trainer: Any) -> Any:
        local = localized(job(trainer=trainer), directory, cwd=here, job_file=there / "job.yaml").spec.trainer
        return local.script or local.command

    assert program(script="both.py --lr 0.1") == "both.py --lr 0.1"
    assert program(script="beside.py --lr 0.1") == f"'{there}/beside.py' --lr 0.1"
    assert program(script="$(FOLDER)/none.py --rank $(RANK)") == "$(FOLDER)/none.py --rank $(RANK)"
    assert program(command=["torchrun", "beside.py", "none.py"]) == ["torchrun", f"{there}/beside.py", "none.py"]
    with pytest.raises(FieldError, match=r"none\.py"):
        program(script="none.py")


@pytest.mark.parametrize("letters", [256, 4096])
def test_a_word_that_is_too_long_for_a_path_does_not_change(letters: int, tmp_path: Path) -> None:
    program = "#" * letters
    trainer = job(trainer={"command": ["python", "-c", program], "args": [program]}).spec.trainer
    local = with_paths(trainer, cwd=tmp_path, job_file=tmp_path / "elsewhere" / "job.yaml")
    assert (local.command, local.args) == (["python", "-c", program], [program])
    with pytest.raises(FieldError, match=r"^spec\.trainer\.script: "):
        with_paths(job(trainer={"script": program.replace("#", "x")}).spec.trainer, cwd=tmp_path, job_file=tmp_path / "job.yaml")


def test_code_runs_in_the_folder_of_its_config_map(tmp_path: Path, directory: RunDirectory) -> None:
    here, there, code = tmp_path / "here", tmp_path / "there", tmp_path / "there" / "my-code"
    here.mkdir()
    code.mkdir(parents=True)
    (code / "train.py").touch()
    trainer = job(trainer={"command": ["torchrun", "train.py"], "code": {"configMap": {"name": "my-code"}}}).spec.trainer
    beside = job(trainer={"script": "train.py", "code": {"configMap": {"name": "other"}}}).spec.trainer
    plain = job(trainer={"script": "train.py"}).spec.trainer
    job_file = there / "job.yaml"
    assert working_directory(trainer, cwd=here, job_file=job_file) == code
    assert working_directory(beside, cwd=here, job_file=job_file) == there
    assert working_directory(plain, cwd=here, job_file=job_file) == here
    assert with_paths(trainer, cwd=code, job_file=job_file).command == ["torchrun", "train.py"]
    assert any(str(code) in line for line in remarks(job(trainer=trainer.wire()), gpus=0, job_file=job_file))


def test_images_and_code_volumes_do_not_apply_to_local_runs(tmp_path: Path, directory: RunDirectory) -> None:
    (tmp_path / "train.py").touch()
    own = {"image": "mine:1", "script": "train.py", "args": ["--rate", "0.1"], "code": {"configMap": {"name": "code"}}}
    local = localized(job(trainer=own), directory, cwd=tmp_path, job_file=tmp_path / "job.yaml").spec.trainer
    assert local.image is None
    launch = launched({"PYTHONPATH": "/mine"}, trainer=local.wire())
    assert launch.argv[-2:] == ("-m", "muster_trainer.supervisor")
    assert "MUSTER_CODE" not in launch.env
    assert launch.env["PYTHONPATH"] == f"/jobs{os.pathsep}/mine"
    assert json.loads(launch.env["MUSTER_TRAINER"])["script"] == "train.py --rate 0.1"


def test_differences_of_local_runs_are_remarks_and_no_errors() -> None:
    gpus = job(roles={"worker": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 1}}}}, suspend=True)
    lines = remarks(gpus, gpus=0, job_file=Path("job.yaml"))
    assert absent(lines[0], "worker", "nvidia.com/gpu", "CPU") == []
    assert any("suspend" in line for line in lines[1:])
    assert not [line for line in remarks(gpus, gpus=2, job_file=Path("job.yaml")) if "GPU" in line]


DEFAULTS = "defaults of trainer.settings: "
RETRIES = "if your code fails, the job restarts, at most 3 times (recovery.application.limit)"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"trainer": {"task": "digits"}}, [f"{DEFAULTS}epochs: 15, learningRate: 0.05, optimizer: SGD", RETRIES]),
        ({"trainer": {"task": "skewed", "settings": {"epochs": 2}}}, [f"{DEFAULTS}learningRate: 0.001, optimizer: Adam", RETRIES]),
        ({"trainer": {"script": "train.py"}}, [RETRIES]),
        (
            {
                "trainer": {"module": "model", "config": {"epochs": 1, "learningRate": 0.1, "optimizer": "Adam"}},
                "recovery": {"application": {"limit": 3}},
            },
            [],
        ),
    ],
)
def test_a_local_run_names_the_defaults_that_a_user_may_not_expect(spec: dict[str, Any], expected: list[str]) -> None:
    lines = remarks(job(**spec), gpus=0, job_file=Path("job.yaml"))
    assert [line for line in lines if line.startswith(("defaults", "if your code"))] == expected


def test_a_variable_of_the_job_overrides_yours_and_one_of_a_secret_comes_from_you() -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
    env = [{"name": "LEVEL", "value": "debug"}, {"name": "FILE", "value": "$(LEVEL).txt"}, secret]
    launch = launched({"LEVEL": "mine", "TOKEN": "t"}, trainer={"script": "train.py", "env": env})
    assert [launch.env[name] for name in ("LEVEL", "FILE", "TOKEN")] == ["debug", "debug.txt", "t"]
    assert [line for line in launch.ignored if "TOKEN" in line] != []


def test_a_local_run_says_that_it_ignores_resource_claims() -> None:
    claims = [{"name": "gpus", "resourceClaimTemplateName": "h100"}]
    lines = remarks(job(roles={"worker": {"replicas": 1, "resourceClaims": claims}}), gpus=0, job_file=Path("job.yaml"))
    assert len([line for line in lines if line.startswith("roles.worker.resourceClaims: ")]) == 1


@pytest.mark.parametrize(
    ("strategy", "listening"),
    [
        ("MultiWorkerMirrored", ["TensorFlow's servers"]),
        ("ParameterServer", ["TensorFlow's servers"]),
        ("Mirrored", []),
        ("DDP", ["PyTorch's store"]),
        ("Pipeline", ["PyTorch's store"]),
        ("RPC", ["PyTorch's store"]),
    ],
)
def test_a_user_is_warned_once_of_what_listens_on_every_address(strategy: str, listening: list[str]) -> None:
    roles = {"worker": {}, "ps": {}, "chief": {}} if strategy in ("ParameterServer", "RPC") else {"worker": {}}
    lines = remarks(job(strategy=strategy, roles=roles), gpus=0, job_file=Path("job.yaml"))
    warnings = [line for line in lines if "every network address" in line and "--ports" in line]
    assert [" ".join(line.split()[:2]) for line in warnings] == listening


def test_fields_of_the_command_line_override_the_job() -> None:
    changed = overridden(job(), ["spec.trainer.config.epochs=3", "spec.batch.globalSize=32", "spec.suspend=true"])
    assert changed.spec.trainer.config == {"epochs": 3}
    assert changed.spec.batch.global_size == 32
    assert changed.spec.suspend is True
    assert changed.spec.trainer.script == "train.py"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs=3", "write the path of a field"),
        ("spec.suspend", "write the path of a field"),
        ("spec.suspend=[", "is not a YAML value"),
        ("spec.nothing=1", "--set: spec.nothing"),
        ("spec.strategy.x=1", "strategy is a value and has no fields"),
        ("spec.roles.worker.replicas=-1", "--set: spec.roles.worker.replicas"),
    ],
)
def test_the_message_names_an_invalid_setting(setting: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        overridden(job(), [setting])
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_the_processes_take_the_debug_setting_of_the_user() -> None:
    env = launched({"MUSTER_DEBUG": "1", "MUSTER_ROLE": "x"}).env
    assert env["MUSTER_DEBUG"] == "1"
    assert env["MUSTER_ROLE"] == "worker"
