"""`muster render` and `muster validate`, started as users start them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.cli import main as command_line
from tests.support.presets import preset
from tests.support.texts import absent

JOB = """\
apiVersion: muster.dev/v1beta1
kind: TrainingJob
metadata: {name: digits}
spec:
  strategy: DDP
  trainer: {task: digits}
  roles: {worker: {replicas: 2}}
  batch: {globalSize: 65, learningRateScaling: Linear}
"""


def muster(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.cli", *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_render_prints_the_service_and_the_pods(job_file: Path) -> None:
    ended = muster("render", str(job_file), "--attempt", "3", "--namespace", "team")
    documents = list(yaml.safe_load_all(ended.stdout))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [(each["kind"], each["metadata"]["name"], each["metadata"]["namespace"]) for each in documents] == [
        ("Service", "digits", "team"),
        ("Pod", "digits-worker-0", "team"),
        ("Pod", "digits-worker-1", "team"),
    ]
    assert documents[1]["metadata"]["labels"]["muster.dev/attempt"] == "3"


def test_render_prints_the_same_as_json(job_file: Path) -> None:
    as_json = json.loads(muster("render", str(job_file), "-o", "json").stdout)
    assert as_json["kind"] == "List"
    documents = list(yaml.safe_load_all(muster("render", str(job_file)).stdout))
    assert [with_parsed_trainer(each) for each in as_json["items"]] == [with_parsed_trainer(each) for each in documents]


def with_parsed_trainer(manifest: dict[str, Any]) -> dict[str, Any]:
    for container in manifest["spec"].get("containers", ()):
        for variable in container["env"]:
            if variable["name"] == "MUSTER_TRAINER":
                variable["value"] = json.loads(variable["value"])
    return manifest


def test_render_prints_the_trainer_in_lines_that_a_screen_shows(job_file: Path) -> None:
    assert max(map(len, muster("render", str(job_file)).stdout.splitlines())) < 140


def test_a_side_car_without_an_image_is_refused_with_the_name_of_the_trainer(job_file: Path) -> None:
    template = "{spec: {containers: [{name: pytorch, env: []}]}}"
    job_file.write_text(JOB.replace("replicas: 2", f"replicas: 2, template: {template}"))
    ended = muster("validate", str(job_file))
    assert ended.returncode == 11
    assert absent(ended.stderr, "spec.roles.worker.template.spec.containers: pytorch has no image", "called trainer") == []


def test_validate_does_not_claim_to_know_the_batches_of_a_script(job_file: Path) -> None:
    assert "65 samples" in muster("validate", str(job_file)).stdout
    job_file.write_text(JOB.replace("task: digits", "script: train.py"))
    assert absent(muster("validate", str(job_file)).stdout, "samples", "learning rate") == ["samples", "learning rate"]


@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_job_of_the_deprecated_version_is_read_with_one_line_of_warning(job_file: Path, command: str) -> None:
    newest = muster(command, str(job_file))
    job_file.write_text(JOB.replace("v1beta1", "v1alpha1"))
    deprecated = muster(command, str(job_file))
    assert (deprecated.returncode, deprecated.stdout) == (0, newest.stdout)
    assert newest.stderr == ""
    [line] = deprecated.stderr.splitlines()
    assert absent(line, f"{job_file}: warning: apiVersion: muster.dev/v1alpha1 is deprecated", "write muster.dev/v1beta1") == []


def test_validate_warns_of_what_may_be_wrong(job_file: Path) -> None:
    job_file.write_text(JOB.replace("task: digits", "module: my.model, config: {epoch: 3}"))
    ended = muster("validate", str(job_file))
    assert absent(ended.stderr, f"{job_file}: warning: spec.trainer.config.epoch", "epochs") == []
    assert "is valid" in ended.stdout


def test_render_reads_standard_input() -> None:
    assert muster("render", "-", stdin=JOB).stdout.count("kind: Pod") == 2


def test_validate_prints_the_world_of_a_job(job_file: Path) -> None:
    ended = muster("validate", str(job_file))
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"{job_file}: default/digits is valid")
    assert (
        absent(ended.stdout, "DDP", "2 x worker", "2 processes", "65 samples", "32 or 33 on each of 2 devices", "learning rate x 2") == []
    )


@pytest.mark.parametrize("command", ["render", "validate"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JOB.replace("DDP", "DPP"), ["spec.strategy", "DDP"]),
        (JOB.replace("replicas: 2", "replicas: -1"), ["spec.roles.worker.replicas"]),
        (JOB.replace("worker:", "ps:"), ["spec.roles", "only worker with this strategy; remove all other roles"]),
        (JOB.replace("task: digits", "task: digits, image: ''"), ["spec.trainer.image"]),
        (JOB + "  communication: NCCL\n", ["spec.communication", "write Auto"]),
        ("[", []),
        (JOB + "---\n" + JOB, []),
        (JOB.replace("{task: digits}", '{script: "\\ud800"}'), []),
        (JOB.replace("{replicas: 2}", '{template: {metadata: {annotations: {a: "\\ud800"}}}}'), []),
        (JOB.replace("{replicas: 2}", "{template: {spec: {containers: [{name: trainer, $patch: delete}]}}}"), []),
    ],
)
def test_a_bad_job_ends_with_11_and_names_file_and_field(tmp_path: Path, command: str, text: str, expected: list[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    ended = muster(command, str(file))
    assert ended.returncode == 11
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert str(file) in ended.stderr
    assert all(words in ended.stderr for words in expected)


def test_a_file_that_does_not_exist_is_named() -> None:
    ended = muster("render", "no-such.yaml")
    assert ended.returncode == 11
    assert "no-such.yaml" in ended.stderr


def test_debug_shows_the_traceback_before_and_after_the_command(tmp_path: Path) -> None:
    for arguments in (["--debug", "validate", "no-such.yaml"], ["validate", "no-such.yaml", "--debug"]):
        ended = muster(*arguments)
        assert ended.returncode == 11
        assert "Traceback" in ended.stderr


def test_a_wrong_namespace_is_refused(job_file: Path) -> None:
    ended = muster("render", str(job_file), "--namespace", "Not A Name")
    assert ended.returncode == 11
    assert "metadata.namespace" in ended.stderr


def test_a_closed_pipe_prints_no_error(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(JOB.replace("replicas: 2", "replicas: 200").replace("65", "650"))
    with subprocess.Popen(
        [sys.executable, "-m", "muster.cli", "render", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "---\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(timeout=60)


def test_render_imports_no_framework_no_server_and_no_kubernetes_client(job_file: Path) -> None:
    program = (
        "import sys; from muster.cli.main import main\n"
        f"try: main(['render', {str(job_file)!r}])\n"
        "except SystemExit: pass\n"
        "print('IMPORTED', *sorted(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = set(ended.stderr.split())
    assert "IMPORTED" in imported
    assert "kind: Pod" in ended.stdout
    assert not imported & {
        "torch",
        "tensorflow",
        "keras",
        "kubernetes",
        "kopf",
        "aiohttp",
        "rich",
        "numpy",
        "asyncio",
        "psutil",
    }


def test_a_command_whose_module_is_missing_does_not_break_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "COMMANDS", {**command_line.COMMANDS, "fly": "muster.cli.fly:fly"})
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--help"])
    assert ended.value.code == 0
    assert "render" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        command_line.main(["fly"])
    assert ended.value.code == 2
    assert "No such command 'fly'" in capsys.readouterr().err


def test_render_and_validate_apply_the_presets_of_a_file(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def output_of(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            command_line.main(arguments)
        return ended.value.code, *capsys.readouterr()

    job_file.write_text(JOB.replace("  strategy: DDP\n", "  strategy: DDP\n  preset: h100-8\n"))
    presets = tmp_path / "presets.yaml"
    presets.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [preset(), preset("a100-8")]}))
    code, out, err = output_of("render", str(job_file), "--presets", str(presets))
    [_, pod, _] = list(yaml.safe_load_all(out))
    [trainer] = pod["spec"]["containers"]
    assert (code, err) == (0, "")
    assert (trainer["image"], trainer["resources"]["limits"]["nvidia.com/gpu"]) == ("registry.example.com/torch:cu128", "8")
    assert {"name": "NCCL_IB_HCA", "value": "mlx5"} in trainer["env"]
    code, out, err = output_of("render", str(job_file))
    assert (code, out) == (11, "")
    assert err.startswith(f"{job_file}: spec.preset: h100-8 ")
    monkeypatch.setenv("MUSTER_PRESETS", str(presets))
    assert "16 processes" in output_of("validate", str(job_file))[1]
    job_file.write_text(job_file.read_text().replace("preset: h100-8", "preset: h100-9"))
    assert absent(output_of("render", str(job_file))[2], "spec.preset: ", "h100-9", "a100-8, h100-8") == []
