"""Bad job files end in messages that name file, line, field and remedy."""

import io
from types import SimpleNamespace

import pytest

from muster.admission.read import MAX_BYTES, InvalidJobFileError, parse_job, read_job
from muster.api.problems import InvalidJobError

HEAD = "apiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: digits}\n"
SPEC = HEAD + "spec:\n  strategy: DDP\n  trainer: {task: digits}\n"


def refusal(text: str) -> str:
    with pytest.raises(InvalidJobError) as refused:
        parse_job(text, source="job.yaml")
    return str(refused.value)


def test_a_job_file_is_read_with_its_defaults(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(SPEC + "  roles: {worker: {replicas: 2}}\n")
    job = read_job(path)
    assert job.key == "default/digits"
    assert job.spec.roles["worker"].replicas == 2
    assert job.spec.checkpoint.keep == 3


def test_a_dash_reads_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(SPEC.encode())))
    assert read_job("-").metadata.name == "digits"


def test_problems_on_standard_input_name_it(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    with pytest.raises(InvalidJobFileError, match=r"^standard input: is empty"):
        read_job("-")


def test_a_json_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "job.json"
    path.write_bytes(
        b'\xef\xbb\xbf{"apiVersion":"muster.dev/v1alpha1","kind":"TrainingJob","metadata":{"name":"a"},"spec":{"strategy":"DDP","trainer":{"task":"digits"}}}'
    )
    assert read_job(path).metadata.name == "a"


def test_fields_of_the_api_server_are_left_out():
    text = SPEC.replace(
        "{name: digits}", "{name: digits, uid: abc, generation: 7, creationTimestamp: null, resourceVersion: '5', labels: {a: b}}"
    )
    job = parse_job(text + "status: {phase: Failed, unknown: 1}\n", source="job.yaml")
    assert (job.metadata.uid, job.metadata.generation, job.metadata.labels) == ("", 1, {"a": "b"})
    assert job.status.phase == "Pending"


def test_a_learning_rate_in_scientific_notation_is_a_number():
    assert parse_job(SPEC.replace("{task: digits}", "{task: digits, config: {learningRate: 1e-3}}"), source="-").spec.trainer.config == {
        "learningRate": 0.001
    }


def test_a_config_may_hold_null_and_any_json():
    config = "{a: null, b: [1, {c: 2.5}], d: yes}"
    job = parse_job(SPEC.replace("{task: digits}", f"{{module: model, config: {config}}}"), source="job.yaml")
    assert job.spec.trainer.config == {"a": None, "b": [1, {"c": 2.5}], "d": True}


def test_the_error_for_a_missing_file_suggests_a_similar_name(tmp_path):
    (tmp_path / "digits.yaml").write_text(SPEC)
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(tmp_path / "digit.yaml")
    assert str(refused.value) == f"{tmp_path}/digit.yaml: does not exist; did you mean {tmp_path}/digits.yaml?"


def test_the_error_for_a_missing_file_names_a_missing_folder(tmp_path):
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(tmp_path / "jobs" / "digits.yaml")
    assert str(refused.value) == f"{tmp_path}/jobs/digits.yaml: does not exist: the folder does not exist either"


def test_a_directory_is_not_a_job_file(tmp_path):
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(tmp_path)
    assert str(refused.value) == f"{tmp_path}: is a directory: name the job file in it"


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"apiVersion: muster.dev/v1alpha1\nkind: \xe4\n")
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(path)
    assert str(refused.value) == f"{path}:2: is not UTF-8: byte 0xe4 at offset 38; save it as UTF-8"


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(path)
    assert str(refused.value) == f"{path}: is larger than 1 MiB, so it is no job file; put code and data elsewhere and name them in it"


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_invalid_path_is_refused(path):
    with pytest.raises(InvalidJobFileError, match="cannot be read"):
        read_job(path)


WHOLE_FILES = [
    ("", "job.yaml: is empty: write apiVersion, kind, metadata and spec"),
    ("a: [", "job.yaml:2: is not YAML (line 2, column 1): did not find expected node content"),
    (SPEC + "---\n" + SPEC, "job.yaml:8: holds 2 documents: put each into a file of its own"),
    ("- a\n- b\n", "job.yaml: holds a list, not a job: write apiVersion, kind, metadata and spec at its top"),
    ("just text\n", 'job.yaml: holds "just text", not a job: write apiVersion, kind, metadata and spec at its top'),
    (SPEC.replace("TrainingJob", "ConfigMap"), 'job.yaml:2: kind: must be TrainingJob, not "ConfigMap"'),
    (SPEC.replace("TrainingJob", "TrainJob"), 'job.yaml:2: kind: must be TrainingJob, not "TrainJob"'),
    (SPEC.replace("v1alpha1", "v1"), 'job.yaml:1: apiVersion: must be muster.dev/v1alpha1, not "muster.dev/v1"'),
    (SPEC.split("\n", 1)[1], "job.yaml: apiVersion: is required: write apiVersion: muster.dev/v1alpha1"),
    (SPEC.replace("metadata: {name: digits}\n", ""), "job.yaml: metadata: is required: name and the rest of an object's metadata"),
    (HEAD, "job.yaml: spec: is required: the desired training"),
    (HEAD + "spec:\n", "job.yaml:4: spec: has no value: leave the field out, or give it one ({} is an empty mapping)"),
    (SPEC + "spec: {}\n", "job.yaml:4: spec: is there twice, on lines 4 and 7; keep one"),
]


@pytest.mark.parametrize(("text", "message"), WHOLE_FILES)
def test_a_file_without_a_job_is_refused_with_its_line(text, message):
    assert refusal(text) == message


FIELDS = [
    ("  foo: 1", "job.yaml:7: spec.foo: is no field of spec"),
    ("  suspended: true", "job.yaml:7: spec.suspended: is no field of spec; did you mean suspend?"),
    (
        "  batch: {global_size: 64}",
        "job.yaml:7: spec.batch.global_size: is no field of spec.batch; did you mean globalSize? "
        "It has globalSize, accumulationSteps, learningRateScaling",
    ),
    (
        "  roles: {workers: {replicas: 2}}",
        "job.yaml:7: spec.roles: only worker with this strategy; remove all other roles",
    ),
    (
        "  roles: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}, i: {}}",
        "job.yaml:7: spec.roles: must have at most 8 entries, not 9",
    ),
    ("  roles: {worker: {replicas: -2}}", "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not -2"),
    ("  roles: {worker: {replicas: 0}}", "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not 0"),
    ("  roles: {worker: {replicas: 99999}}", "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at most 4096, not 99999"),
    (
        "  roles: {worker: {replicas: 2.0}}",
        "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not 2.0: write 2",
    ),
    ("  roles: {worker: {replicas: 2.5}}", "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not 2.5"),
    (
        '  roles: {worker: {replicas: "2"}}',
        'job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not "2": take the quotes away',
    ),
    ("  roles: {worker: {replicas: yes}}", "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not true"),
    ("  roles: {worker: {replicas: 1e300}}", "job.yaml:7: spec.roles.worker.replicas: must be a whole number of at least 1, not 1e+300"),
    (
        "  roles:\n    worker:\n      replicas:",
        "job.yaml:9: spec.roles.worker.replicas: has no value: leave the field out, or give it one ({} is an empty mapping)",
    ),
    ("  roles: 2", "job.yaml:7: spec.roles: must be a mapping (name: value), not 2"),
    ("  roles: [worker]", "job.yaml:7: spec.roles: must be a mapping (name: value), not a list"),
    ("  suspend: 'yes'", 'job.yaml:7: spec.suspend: must be true or false, not "yes"'),
    ("  managedBy: 5", "job.yaml:7: spec.managedBy: must be text, not 5: put it in quotes"),
    (
        "  communication: nccl2",
        'job.yaml:7: spec.communication: must be one of Auto, NCCL, Gloo, Ring, Hierarchical, OneDevice, not "nccl2"; did you mean NCCL?',
    ),
    ("  checkpoint: {keep: 1}", "job.yaml:7: spec.checkpoint.keep: must be a whole number of at least 2, not 1"),
    *(
        (
            f"  checkpoint: {{everySeconds: {value}}}",
            "job.yaml:7: spec.checkpoint.everySeconds: must be a whole number from 1 to 604800, or Auto, or Continuous",
        )
        for value in ("0", "604801", "auto", "'60'", "1.5", "true", "[Auto]")
    ),
    ("  checkpoint: {storage: {uri: ''}}", "job.yaml:7: spec.checkpoint.storage.uri: must not be empty"),
    (
        "  checkpoint: {name: a/b}",
        "job.yaml:7: spec.checkpoint.name: must have this form, not \"a/b\": name of the job's folder, in the namespace's folder of the "
        "storage. It consists of letters, digits, '.', '_' and '-'. Default: the job's name",
    ),
    ("  elastic: {minReplicas: 1}", "job.yaml:7: spec.elastic.maxReplicas: is required: largest number of workers the job may run with"),
    (
        "  roles: {worker: {resources: {limits: {cpu: 0.5}}}}",
        "job.yaml:7: spec.roles.worker.resources.limits.cpu: must be a whole number or text, such as 4, 500m or 16Gi: "
        'write "0.5", in quotes',
    ),
    (
        "  roles: {worker: {resources: {limits: {memory: 16 GB}}}}",
        "job.yaml:7: spec.roles.worker.resources.limits.memory: must be a quantity, such as 4, 500m or 16Gi, not '16 GB'",
    ),
    (
        "  roles: {worker: {resources: {limits: {nvidia.com/gpu: [1]}}}}",
        "job.yaml:7: spec.roles.worker.resources.limits[nvidia.com/gpu]: must be a quantity, such as 4, 500m or 16Gi",
    ),
    ("  options: {devices: []}", "job.yaml:7: spec.options.devices: must not be empty: leave the field out"),
    ("  options: {devices: GPU:0}", 'job.yaml:7: spec.options.devices: must be a list, such as [a, b], not "GPU:0"'),
    ('  scheduling: {queue: "a\\0b"}', "job.yaml:7: spec.scheduling.queue: has a NUL character: remove it"),
    ("  roles: {ps: {replicas: 1}}", "job.yaml:7: spec.roles: only worker with this strategy; remove all other roles"),
    (
        "  roles: {worker: {replicas: 4}}\n  batch: {globalSize: 3}",
        "job.yaml:8: spec.batch.globalSize: 3 samples cannot be shared out over 4 devices; write at least 4",
    ),
]


@pytest.mark.parametrize(("text", "message"), FIELDS)
def test_a_bad_field_is_named_with_line_and_remedy(text, message):
    assert refusal(SPEC + text + "\n") == message


TRAINERS = [
    ("{}", "job.yaml:6: spec.trainer: needs exactly one of task, module, script and command"),
    (
        "{task: digits, script: train.py}",
        "job.yaml:6: spec.trainer: needs exactly one of task, module, script and command",
    ),
    ("{task: digits, config: {a: .nan}}", "job.yaml:6: spec.trainer.config.a: must be a finite number: JSON has no NaN and no infinity"),
    ("{command: torchrun}", 'job.yaml:6: spec.trainer.command: must be a list, such as [a, b], not "torchrun"'),
    ("{command: []}", "job.yaml:6: spec.trainer.command: must not be empty: leave the field out"),
    ("{command: [sleep, 5]}", "job.yaml:6: spec.trainer.command[1]: must be text, not 5: put it in quotes"),
    (
        "{module: my_pkg/model.py}",
        "job.yaml:6: spec.trainer.module: must be a Python module, such as my_pkg.model; a file goes into script, not 'my_pkg/model.py'",
    ),
]


@pytest.mark.parametrize(("trainer", "message"), TRAINERS)
def test_a_bad_trainer_is_named_with_line_and_remedy(trainer, message):
    assert refusal(SPEC.replace("{task: digits}", trainer)) == message


def test_the_error_for_an_unknown_strategy_lists_all_strategies():
    assert refusal(SPEC.replace("DDP", "ddp")) == (
        "job.yaml:5: spec.strategy: must be one of OneDevice, Mirrored, CentralStorage, MultiWorkerMirrored, ParameterServer, TPU, DDP, "
        'FSDP, TensorParallel, Pipeline, RPC, JAX, not "ddp"; did you mean DDP?'
    )


def test_all_problems_are_listed_in_the_order_of_the_file():
    text = SPEC.replace("DDP", "DPP") + "  suspend: 1\n  batch: {accumulationSteps: 0, globalSize: 0}\n  suspend: 2\n"
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in refusal(text).splitlines()] == [
        "job.yaml:5 spec.strategy",
        "job.yaml:7 spec.suspend",
        "job.yaml:8 spec.batch.accumulationSteps",
        "job.yaml:8 spec.batch.globalSize",
    ]


def test_the_error_has_its_problems_without_file_and_line():
    with pytest.raises(InvalidJobError) as refused:
        parse_job(SPEC + "  suspend: 1\n", source="job.yaml")
    assert [(problem.field, problem.message) for problem in refused.value.problems] == [("spec.suspend", "must be true or false, not 1")]
