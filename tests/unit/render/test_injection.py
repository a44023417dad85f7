"""The text of a user cannot break or inject YAML."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.api.job import TrainingJob
from muster.cli.render import as_yaml
from muster.render.addresses import ClusterAddresses
from muster.render.images import Images
from muster.render.manifests import render

IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
NASTY = [
    "quote \" and ' and \\",
    "line\nbreak: {a: b}\n- item",
    "\n---\napiVersion: v1\nkind: Secret",
    "{{ 7 * 7 }}{% raw %}{# comment #}",
    "next\x85line, line\u2028separator, paragraph\u2029separator",
    "!!python/object/apply:os.system ['true']",
    "&anchor *alias <<: # comment",
    "null",
    "1e3",
    "0x1f",
    "yes",
    "2024-01-01",
    "\ufeffbyte order mark, delete \x7f, c1 \x9f, emoji \U0001f680",
    "NUL \x00, bell \x07, tab\t",
    "$(MUSTER_JOB) $$(HOME) $",
    "<value 0>",
    " leading and trailing ",
]
texts = st.sampled_from(NASTY) | st.text(st.characters(codec="utf-8"), min_size=1)


def rendered(trainer: dict[str, Any], **metadata: Any) -> list[dict[str, Any]]:
    checkpoint = {"storage": {"persistentVolumeClaim": {"claimName": trainer.pop("claim", "c")}}}
    job = TrainingJob.model_validate(
        {"metadata": {"name": "job", **metadata}, "spec": {"strategy": "DDP", "trainer": trainer, "checkpoint": checkpoint}}
    )
    return render(job, attempt=0, addresses=ClusterAddresses("job", "default"), images=IMAGES)


def trainer_of(pod: dict[str, Any]) -> dict[str, Any]:
    return pod["spec"]["containers"][0]


def unescaped(text: str) -> str:
    return text.replace("$$", "$")


PLAIN_POD = rendered({"task": "plain"})[1]


@given(task=texts.filter(lambda text: len(text) <= 253), config=st.dictionaries(texts, texts, max_size=3))
def test_a_task_and_its_config_are_rendered_unchanged(task: str, config: dict[str, str]) -> None:
    [service, pod] = rendered({"task": task, "config": config})
    environment = {each["name"]: each.get("value") for each in trainer_of(pod)["env"]}
    trainer = json.loads(unescaped(environment["MUSTER_TRAINER"]))
    assert (trainer["task"], trainer.get("config", {})) == (task, config)
    assert _shape(pod) == _shape(PLAIN_POD)
    assert service["kind"] == "Service"


@given(image=texts, command=st.lists(texts, min_size=1, max_size=4), claim=texts.filter(lambda text: len(text) <= 253))
def test_image_command_and_claim_are_rendered_unchanged(image: str, command: list[str], claim: str) -> None:
    pod = rendered({"image": image, "command": command, "claim": claim})[1]
    container = trainer_of(pod)
    assert container["image"] == image
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert json.loads(unescaped(environment["MUSTER_TRAINER"]))["command"] == command
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [claim]


@given(image=texts, command=st.lists(texts, min_size=1, max_size=4))
def test_printed_yaml_is_read_back_as_the_same_manifests(image: str, command: list[str]) -> None:
    manifests = rendered({"image": image, "command": command})
    printed = list(yaml.safe_load_all(as_yaml(manifests)))
    for each in (*manifests, *printed):
        for variable in trainer_of(each)["env"] if each["kind"] == "Pod" else ():
            if variable["name"] == "MUSTER_TRAINER":
                variable["value"] = json.loads(variable["value"])
    assert printed == manifests


def test_references_are_escaped_in_a_config_but_not_in_a_command() -> None:
    command = ["sh", "-c", "echo $(MUSTER_JOB) $$(RANK) $HOME"]
    container = trainer_of(rendered({"supervisor": "Disabled", "command": command, "config": {"name": "$(RANK)"}})[1])
    assert container["command"] == command
    [trainer] = [each["value"] for each in container["env"] if each["name"] == "MUSTER_TRAINER"]
    assert json.loads(trainer)["config"]["name"] == "$$(RANK)"


def _shape(value: Any) -> Any:
    """The keys of an object on all levels."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    return [_shape(inner) for inner in value] if isinstance(value, list) else None
