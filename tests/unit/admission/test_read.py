"""Bad job files end in messages that name file, line, field and remedy."""

import io
from types import SimpleNamespace

import pytest

from muster.admission.read import MAX_BYTES, InvalidJobFileError, parse_job, read_job
from muster.admission.sentences import MAX_PROBLEMS
from muster.api.problems import InvalidJobError
from muster.strategies.registry import STRATEGIES
from tests.support.texts import absent

HEAD = "apiVersion: muster.dev/v1beta1\nkind: TrainingJob\nmetadata: {name: digits}\n"
POD = "spec.roles.worker.template.spec"
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
        b'\xef\xbb\xbf{"apiVersion":"muster.dev/v1beta1","kind":"TrainingJob","metadata":{"name":"a"},"spec":{"strategy":"DDP","trainer":{"task":"digits"}}}'
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
    assert absent(str(refused.value), f"{tmp_path}/digit.yaml: ", f"did you mean {tmp_path}/digits.yaml?") == []


def test_the_error_for_a_missing_file_names_a_missing_folder(tmp_path):
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(tmp_path / "jobs" / "digits.yaml")
    assert absent(str(refused.value), f"{tmp_path}/jobs/digits.yaml: ", "folder does not exist") == []


def test_a_directory_is_not_a_job_file(tmp_path):
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(tmp_path)
    assert absent(str(refused.value), f"{tmp_path}: ", "directory") == []


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"apiVersion: muster.dev/v1beta1\nkind: \xe4\n")
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(path)
    assert absent(str(refused.value), f"{path}:2: ", "UTF-8", "0xe4", "37") == []


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InvalidJobFileError) as refused:
        read_job(path)
    assert absent(str(refused.value), f"{path}: ", "1 MiB") == []


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_invalid_path_is_refused(path):
    with pytest.raises(InvalidJobFileError, match="cannot be read"):
        read_job(path)


WHOLE_FILES = [
    ("", "job.yaml", "is empty"),
    ("a: [", "job.yaml:2", "line 2, column 1"),
    (SPEC + "---\n" + SPEC, "job.yaml:8", "2 documents"),
    ("- a\n- b\n", "job.yaml", "a list"),
    ("just text\n", "job.yaml", '"just text"'),
    (SPEC.replace("TrainingJob", "ConfigMap"), "job.yaml:2: kind", '"ConfigMap"'),
    (SPEC.replace("TrainingJob", "TrainJob"), "job.yaml:2: kind", '"TrainJob"'),
    (SPEC.replace("TrainingJob", "PyTorchJob"), "job.yaml:2: kind", "muster convert"),
    (SPEC.replace("v1beta1", "v1"), "job.yaml:1: apiVersion", '"muster.dev/v1"'),
    (SPEC.split("\n", 1)[1], "job.yaml: apiVersion", "write apiVersion: muster.dev/v1beta1"),
    (SPEC.replace("metadata: {name: digits}\n", ""), "job.yaml: metadata", "is required"),
    (HEAD, "job.yaml: spec", "is required"),
    (HEAD + "spec:\n", "job.yaml:4: spec", "has no value"),
    (SPEC + "spec: {}\n", "job.yaml:4: spec", "lines 4 and 7"),
]


def assert_refused(text: str, place: str, fact: str) -> None:
    """Checks the file, line and field of the only problem. `fact` is the wrong value, or what to write instead."""
    message = refusal(text)
    assert message.startswith(f"{place}: ")
    assert "\n" not in message
    assert absent(message, fact) == []


@pytest.mark.parametrize(("text", "place", "fact"), WHOLE_FILES)
def test_a_file_without_a_job_is_refused_with_its_line(text: str, place: str, fact: str) -> None:
    assert_refused(text, place, fact)


def test_metadata_that_are_a_list_hide_no_other_problem() -> None:
    message = refusal(SPEC.replace("metadata: {name: digits}", "metadata: []") + "  elastic: {maxReplicas: 4}\n")
    assert [line.split(" ")[1] for line in message.splitlines()] == ["metadata:", "spec.elastic.minReplicas:"]


FIELDS = [
    ("  foo: 1", "job.yaml:7: spec.foo", "not a field of spec"),
    ("  usageLimits: {deviceHours: 0}", "job.yaml:7: spec.usageLimits.deviceHours", "must be a number of at least 0.001, not 0"),
    ("  usageLimits: {cost: cheap}", "job.yaml:7: spec.usageLimits.cost", "must be a number"),
    ("  usageLimits: {action: Suspend}", "job.yaml:7: spec.usageLimits", "write deviceHours, cost or both"),
    ("  suspended: true", "job.yaml:7: spec.suspended", "did you mean suspend?"),
    (
        "  batch: {global_size: 64}",
        "job.yaml:7: spec.batch.global_size",
        "did you mean globalSize?",
    ),
    (
        "  roles: {workers: {replicas: 2}}",
        "job.yaml:7: spec.roles",
        "worker",
    ),
    (
        "  roles: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}, i: {}}",
        "job.yaml:7: spec.roles",
        "at most 8",
    ),
    ("  roles: {worker: {replicas: -2}}", "job.yaml:7: spec.roles.worker.replicas", "at least 1"),
    ("  roles: {worker: {replicas: 0}}", "job.yaml:7: spec.roles.worker.replicas", "at least 1"),
    ("  roles: {worker: {replicas: 99999}}", "job.yaml:7: spec.roles.worker.replicas", "at most 4096"),
    (
        "  roles: {worker: {replicas: 2.0}}",
        "job.yaml:7: spec.roles.worker.replicas",
        "write 2",
    ),
    ("  roles: {worker: {replicas: 2.5}}", "job.yaml:7: spec.roles.worker.replicas", "not 2.5"),
    (
        '  roles: {worker: {replicas: "2"}}',
        "job.yaml:7: spec.roles.worker.replicas",
        "quotes",
    ),
    ("  roles: {worker: {replicas: yes}}", "job.yaml:7: spec.roles.worker.replicas", "not true"),
    ("  roles: {worker: {replicas: 1e300}}", "job.yaml:7: spec.roles.worker.replicas", "1e+300"),
    (
        "  roles:\n    worker:\n      replicas:",
        "job.yaml:9: spec.roles.worker.replicas",
        "no value",
    ),
    ("  roles: 2", "job.yaml:7: spec.roles", "mapping"),
    ("  roles: [worker]", "job.yaml:7: spec.roles", "mapping"),
    ("  suspend: 'yes'", "job.yaml:7: spec.suspend", '"yes"'),
    ("  managedBy: 5", "job.yaml:7: spec.managedBy", "quotes"),
    (
        "  communication: nccl2",
        "job.yaml:7: spec.communication",
        "did you mean NCCL?",
    ),
    ("  checkpoint: {keep: 1}", "job.yaml:7: spec.checkpoint.keep", "at least 2"),
    *(
        (
            f"  checkpoint: {{everySeconds: {value}}}",
            "job.yaml:7: spec.checkpoint.everySeconds",
            "604800",
        )
        for value in ("0", "604801", "auto", "'60'", "1.5", "true", "[Auto]")
    ),
    ("  checkpoint: {storage: {uri: ''}}", "job.yaml:7: spec.checkpoint.storage.uri", "not be empty"),
    (
        "  checkpoint: {name: a/b}",
        "job.yaml:7: spec.checkpoint.name",
        '"a/b"',
    ),
    ("  elastic: {minReplicas: 1}", "job.yaml:7: spec.elastic.maxReplicas", "required"),
    (
        "  roles: {worker: {resources: {limits: {cpu: 0.5}}}}",
        "job.yaml:7: spec.roles.worker.resources.limits.cpu",
        '"0.5"',
    ),
    (
        "  roles: {worker: {resources: {limits: {memory: 16 GB}}}}",
        "job.yaml:7: spec.roles.worker.resources.limits.memory",
        "'16 GB'",
    ),
    (
        "  roles: {worker: {resources: {limits: {nvidia.com/gpu: [1]}}}}",
        "job.yaml:7: spec.roles.worker.resources.limits[nvidia.com/gpu]",
        "quantity",
    ),
    ("  options: {devices: []}", "job.yaml:7: spec.options.devices", "leave the field out"),
    ("  options: {devices: GPU:0}", "job.yaml:7: spec.options.devices", "a list"),
    ('  scheduling: {queue: "a\\0b"}', "job.yaml:7: spec.scheduling.queue", "NUL"),
    ("  roles: {ps: {replicas: 1}}", "job.yaml:7: spec.roles", "worker"),
    (
        "  roles: {worker: {replicas: 4}}\n  batch: {globalSize: 3}",
        "job.yaml:8: spec.batch.globalSize",
        "at least 4",
    ),
]


@pytest.mark.parametrize(("text", "place", "fact"), FIELDS)
def test_a_bad_field_is_named_with_line_and_remedy(text: str, place: str, fact: str) -> None:
    assert_refused(SPEC + text + "\n", place, fact)


TEMPLATES = [
    ("env: [{name: N, value: '10'}]", "env[0].name", "YAML reads n, N, no, off and false as false, so put the word in quotes"),
    ("env: [{name: ON, value: '10'}]", "env[0].name", "YAML reads y, Y, yes, on and true as true"),
    ("env: [{name: A, value: no}]", "env[0].value", "put the word in quotes"),
    ("env: [{name: 1, value: a}]", "env[0].name", "put it in quotes"),
    ("envs: []", "envs", "did you mean env?"),
]


@pytest.mark.parametrize(("field", "place", "fact"), TEMPLATES)
def test_a_word_that_yaml_reads_as_something_else_is_named_in_a_template(field: str, place: str, fact: str) -> None:
    template = f"  roles: {{worker: {{template: {{spec: {{containers: [{{name: trainer, {field}}}]}}}}}}}}\n"
    assert_refused(SPEC + template, f"job.yaml:7: spec.roles.worker.template.spec.containers[0].{place}", fact)


def test_a_key_that_yaml_reads_as_something_else_is_named():
    assert_refused(SPEC + "  roles: {worker: {template: {metadata: {labels: {N: a}}}}}\n", "job.yaml:7", 'put it in quotes, "N"')


def test_a_label_that_yaml_reads_as_something_else_is_named():
    assert_refused(
        SPEC.replace("digits}\nspec", "digits, labels: {gpu: on}}\nspec"), "job.yaml:3: metadata.labels.gpu", "put the word in quotes"
    )


def test_a_job_with_generate_name_and_without_a_name_is_refused_with_the_reason():
    assert_refused(SPEC.replace("{name: digits}", "{generateName: digits-}"), "job.yaml:3: metadata.name", "in place of generateName")
    parse_job(SPEC.replace("{name: digits}", "{name: digits-x7k2p, generateName: digits-}"), source="job.yaml")


TRAINERS = [
    ("{task: mnist}", "job.yaml:6: spec.trainer.task", "module: your_module"),
    ("{task: digit}", "job.yaml:6: spec.trainer.task", "did you mean digits?"),
    ("{task: digits, config: {epoch: 3}}", "job.yaml:6: spec.trainer.config.epoch", "did you mean epochs?"),
    ("{task: digits, config: {lr: 3}}", "job.yaml:6: spec.trainer.config.lr", "did you mean learningRate?"),
    ("{task: digits, settings: {epoch: 3}}", "job.yaml:6: spec.trainer.settings.epoch", "did you mean epochs?"),
    ("{task: digits, settings: {lr: 3}}", "job.yaml:6: spec.trainer.settings.lr", "write spec.trainer.settings.learningRate"),
    ("{task: digits, optimizer: Adam}", "job.yaml:6: spec.trainer.optimizer", "write spec.trainer.settings.optimizer"),
    ('{task: digits, settings: {epochs: "3"}}', "job.yaml:6: spec.trainer.settings.epochs", "take the quotes away"),
    ("{task: digits, settings: {optimizer: adam}}", "job.yaml:6: spec.trainer.settings.optimizer", "one of SGD, Adam, AdamW"),
    (
        "{task: digits, settings: {seed: 1}, config: {seed: 2}}",
        "job.yaml:6: spec.trainer.settings.seed",
        "config.seed has another value, 2",
    ),
    ("{script: train.py, settings: {seed: 1, epochs: 2}}", "job.yaml:6: spec.trainer.settings", "is for task and module"),
    ("{task: digits, config: {hidden: 3}}", "job.yaml:6: spec.trainer.config.hidden", "a list"),
    ("{script: -m pkg.train --fast}", "job.yaml:6: spec.trainer.script", "write command: [torchrun, -m, pkg.train, --fast]"),
    ("{task: digits, env: {A: b, C: 1}}", "job.yaml:6: spec.trainer.env", 'write [{name: A, value: "b"}, {name: C, value: "1"}]'),
    ("{task: digits, envs: {A: b}}", "job.yaml:6: spec.trainer.envs", "write spec.trainer.env: [{name: NAME, value: text}]"),
    ("{task: digits, env: [{name: A, value: 1}]}", "job.yaml:6: spec.trainer.env[0].value", "put it in quotes"),
    ("{task: digits, nprocPerNode: 2}", "job.yaml:6: spec.trainer.nprocPerNode", "spec.roles.worker.processesPerReplica"),
    ("{}", "job.yaml:6: spec.trainer", "exactly one of"),
    (
        "{task: digits, script: train.py}",
        "job.yaml:6: spec.trainer",
        "exactly one of",
    ),
    ("{task: digits, config: {a: .nan}}", "job.yaml:6: spec.trainer.config.a", "finite"),
    ("{command: torchrun}", "job.yaml:6: spec.trainer.command", "a list"),
    ("{command: []}", "job.yaml:6: spec.trainer.command", "not be empty"),
    ("{command: [sleep, 5]}", "job.yaml:6: spec.trainer.command[1]", "quotes"),
    (
        "{module: my_pkg/model.py}",
        "job.yaml:6: spec.trainer.module",
        "my_pkg.model",
    ),
]


@pytest.mark.parametrize(("trainer", "place", "fact"), TRAINERS)
def test_a_bad_trainer_is_named_with_line_and_remedy(trainer: str, place: str, fact: str) -> None:
    assert_refused(SPEC.replace("{task: digits}", trainer), place, fact)


def test_the_error_for_an_unknown_strategy_lists_all_strategies():
    message = refusal(SPEC.replace("DDP", "ddp"))
    assert message.startswith("job.yaml:5: spec.strategy: ")
    assert absent(message, *STRATEGIES, '"ddp"', "did you mean DDP?") == []


def test_all_problems_are_listed_in_the_order_of_the_file():
    text = SPEC.replace("DDP", "DPP") + "  suspend: 1\n  batch: {accumulationSteps: 0, globalSize: 0}\n  suspend: 2\n"
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in refusal(text).splitlines()] == [
        "job.yaml:5 spec.strategy",
        "job.yaml:7 spec.suspend",
        "job.yaml:8 spec.batch.accumulationSteps",
        "job.yaml:8 spec.batch.globalSize",
    ]


BOTH = [
    ("  suspend: 'yes'\n  roles: {worker: {replicas: 4}}\n  batch: {globalSize: 3}\n", ["spec.suspend", "spec.batch.globalSize"]),
    ("  foo: 1\n  roles: {worker: {resources: {limits: {gpu: 1}}}}\n", ["spec.foo", "spec.roles.worker.resources.limits.gpu"]),
    ("  batch: {size: 1}\n  roles: {worker: {template: {spec: {toleration: []}}}}\n", ["spec.batch.size", f"{POD}.toleration"]),
    (
        "  managedBy:\n  checkpoint: {storage: {uri: /a}, keep: 1}\n",
        ["spec.managedBy", "spec.checkpoint.storage.uri", "spec.checkpoint.keep"],
    ),
    ("  inputs: [{name: A, source: 'hf://a/b'}, {}]\n  queue: a\n", ["spec.inputs[1].name", "spec.inputs[1].source", "spec.queue"]),
]


@pytest.mark.parametrize(("text", "fields"), BOTH)
def test_fields_of_a_wrong_type_do_not_hide_the_problems_of_others(text: str, fields: list[str]) -> None:
    assert [line.split(": ")[1] for line in refusal(SPEC + text).splitlines()] == fields


UNREAD = [
    "  roles: {worker: {replicas: '4'}}\n  elastic: {minReplicas: 2, maxReplicas: 4}\n  batch: {globalSize: 8}\n",
    "  communication: NCCL\n  roles: {worker: {resources: {limits: {nvidia.com/gpu: [1]}}}}\n",
    "  roles: {worker: {replica: 4}}\n  checkpoint: {memory: {sizeMib: 64}}\n",
]


@pytest.mark.parametrize("text", UNREAD)
def test_a_field_that_cannot_be_read_causes_no_second_problem(text: str) -> None:
    assert len(refusal(SPEC + text).splitlines()) == 1


def test_an_unknown_strategy_does_not_hide_other_problems_and_has_one_message():
    text = SPEC.replace("DDP", "parameter_server") + "  checkpoint: {storage: {uri: /a}}\n  roles: {ps: {}}\n"
    assert [line.split(": ")[1] for line in refusal(text).splitlines()] == ["spec.strategy", "spec.checkpoint.storage.uri"]


def test_a_file_with_thousands_of_wrong_fields_shows_the_first_and_their_number():
    lines = refusal(SPEC + "".join(f"  field{number}: 1\n" for number in range(3000))).splitlines()
    assert len(lines) == MAX_PROBLEMS + 1
    assert "2,900 more problems" in lines[0]


def test_the_error_has_its_problems_without_file_and_line():
    with pytest.raises(InvalidJobError) as refused:
        parse_job(SPEC + "  suspend: 1\n", source="job.yaml")
    assert [problem.field for problem in refused.value.problems] == ["spec.suspend"]
    assert "job.yaml" not in refused.value.problems[0].message


def test_a_long_key_does_not_fill_the_message():
    assert len(refusal(SPEC.replace("digits}\n", "digits, config: {? " + "k" * 20_000 + " : 1}}\n"))) < 2_000
