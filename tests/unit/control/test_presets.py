"""The preset of a job: when the job gets it, when it changes, and the errors."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.acceptance.presets import Presets, read_presets, with_preset, with_preset_written_out
from muster.admission.job_policy import JobPolicy, Templates
from muster.admission.read import InvalidJobFileError, parse_job, read_job
from muster.api.problems import InvalidJobError, Problem
from muster.control.admission import Admission, Admitted
from muster.render.defaults import JobDefaults
from tests.support.presets import H100_8, preset
from tests.support.texts import absent
from tests.unit.control.control_worlds import KEY, World
from tests.unit.control.test_admission import GOOD, IMAGES, RUNNING, obj

NAMED = {**GOOD, "preset": "h100-8"}
WORLD = {"attempt": 0, "size": 4, "createdTime": "2026-11-21T12:00:00Z"}
READY = {**RUNNING, "world": {**WORLD, "readyTime": "2026-11-21T12:00:00Z"}}
STARTING = {**RUNNING, "world": WORLD}
SMALL = preset(roles={"worker": {"resources": {"limits": {"nvidia.com/gpu": 2}}}})


def admission(presets: Presets, **policy: Any) -> Admission:
    return Admission(IMAGES, JobDefaults(), JobPolicy(**policy), presets=presets)


def gpus(admitted: Admitted) -> str:
    return str(admitted.job.spec.roles["worker"].resources.limits.get("nvidia.com/gpu"))


def messages(admitted: Admitted) -> list[str]:
    return [str(problem) for problem in admitted.problems]


def test_an_unknown_preset_is_refused_with_the_names_of_all_presets() -> None:
    judge = admission(Presets([preset("h100-8"), preset("a100-8")]))
    [text] = messages(judge.admit(obj({**GOOD, "preset": "h100-9"})))
    assert absent(text, "spec.preset: ", "h100-9", "a100-8, h100-8") == []
    grown = Presets([preset("h100-8")])
    judge = admission(grown)
    judge.admit(obj({**GOOD, "preset": "h100-9"}))
    grown.update([preset("h100-8"), preset("a100-8")])
    assert messages(judge.admit(obj({**GOOD, "preset": "h100-9"}))) == [text]
    [none] = messages(admission(Presets()).admit(obj(NAMED)))
    assert absent(none, "spec.preset: ", "h100-8", "there is none") == []
    many = admission(Presets([preset(f"p{number}") for number in range(30)])).admit(obj(NAMED))
    assert messages(many)[0].endswith(" and 18 more")


@pytest.mark.parametrize("name", ["H100", "a" * 64, "-x", "x\x1b[31m", "", 8, ["h100-8"]])
def test_an_invalid_name_of_a_preset_is_refused(name: Any) -> None:
    [problem] = admission(Presets()).admit(obj({**GOOD, "preset": name})).problems
    assert problem.field == "spec.preset"
    assert len(problem.message) < 400
    assert "\x1b" not in problem.message


def test_a_job_waits_until_its_preset_exists() -> None:
    presets = Presets()
    world = World(presets=presets)
    world.submit(preset="h100-8")
    world.reconcile()
    assert not world.cluster.of("Pod")
    assert presets.update([SMALL])
    world.reconcile()
    assert len(world.cluster.of("Pod")) == 2
    [valid] = [each for each in world.status()["conditions"] if each["type"] == "Valid"]
    assert (valid["status"], "h100-8" in valid["message"]) == ("True", True)


def test_a_preset_that_is_not_valid_is_named_with_the_field() -> None:
    broken = preset(template={"spec": {"containers": [{"name": "trainer", "env": [{"name": "MUSTER_JOB", "value": "x"}]}]}})
    [text] = messages(admission(Presets([broken])).admit(obj(NAMED)))
    assert absent(text, "spec.preset: preset h100-8", " spec.template.spec.containers[0].env[0].name: ") == []
    [text] = messages(admission(Presets([preset(template=3)])).admit(obj(NAMED)))
    assert absent(text, "spec.preset: preset h100-8", " spec.template: ", "a mapping") == []
    many = preset(roles={"worker": {"resources": {"limits": {"nvidia.com/gpu": "many!"}}}})
    [text] = messages(admission(Presets([many])).admit(obj(NAMED)))
    assert absent(text, "spec.preset: preset h100-8", " spec.roles.worker.resources.limits[nvidia.com/gpu]: ") == []
    [text] = messages(admission(Presets([{**preset(), "spec": None}])).admit(obj(NAMED)))
    assert absent(text, "spec.preset: preset h100-8", " spec: ") == []


def test_a_job_that_its_preset_makes_invalid_is_refused_with_preset_and_field() -> None:
    judge = admission(Presets([SMALL]))
    assert judge.admit(obj({**GOOD, "batch": {"globalSize": 3}})).problems == ()
    [text] = messages(judge.admit(obj({**NAMED, "batch": {"globalSize": 3}}, generation=2)))
    assert absent(text, "spec.preset: ", "preset h100-8", "spec.batch.globalSize", "3 samples") == []
    merging = preset(template={"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "a"}]}]}})
    [text] = messages(admission(Presets([merging])).admit(obj(NAMED)))
    assert absent(text, "spec.preset: preset h100-8", "template.spec.containers[0].volumeMounts[0]: ", "mountPath") == []
    own = {**NAMED, "batch": {"globalSize": 1}}
    assert [each.field for each in judge.admit(obj(own, generation=3)).problems] == ["spec.batch.globalSize"]


def test_a_changed_preset_reaches_a_running_job_and_its_pods_get_another_form() -> None:
    presets = Presets([SMALL])
    judge = admission(presets)
    before = judge.admit(obj(NAMED))
    assert gpus(before) == "2"
    assert not presets.update([copy.deepcopy(SMALL)]), "nothing has changed"
    assert judge.admit(obj(NAMED, status=READY)).job.spec is before.job.spec
    assert presets.update([preset()])
    after = judge.admit(obj(NAMED, status=READY))
    assert (gpus(after), after.problems) == ("8", ())
    assert after.template_hash != before.template_hash


def test_a_starting_world_keeps_the_old_version_of_its_preset() -> None:
    presets = Presets([SMALL])
    judge = admission(presets)
    before = judge.admit(obj(NAMED))
    for objects in ([preset()], []):
        presets.update(objects)
        same = judge.admit(obj(NAMED, status=STARTING))
        assert (same.template_hash, same.defaults, same.problems) == (before.template_hash, before.defaults, ())
    presets.update([preset()])
    assert gpus(judge.admit(obj(NAMED, status=READY))) == "8"


def test_a_running_job_keeps_its_deleted_preset_and_becomes_invalid() -> None:
    presets = Presets([SMALL])
    judge = admission(presets)
    before = judge.admit(obj(NAMED))
    presets.update([])
    after = judge.admit(obj(NAMED, status=READY))
    assert (gpus(after), after.template_hash) == ("2", before.template_hash)
    assert [each.field for each in after.problems] == ["spec.preset"]
    again = admission(presets).admit(obj(NAMED, status=READY))
    assert again.problems, "an operator that has never seen the preset starts nothing without it"
    presets.update([SMALL])
    assert judge.admit(obj(NAMED, status=READY)).problems == ()


def test_a_job_changes_its_preset_only_while_it_is_suspended() -> None:
    judge = admission(Presets([SMALL, preset("other")]))
    judge.admit(obj(NAMED))
    changed = {**NAMED, "preset": "other"}
    [problem] = judge.admit(obj(changed, generation=2, status=READY)).problems
    assert (problem.field, "suspend: true" in problem.message) == ("spec.preset", True)
    assert judge.admit(obj({**changed, "suspend": True}, generation=3, status=READY)).problems == ()


def test_all_pods_of_a_new_world_have_the_changed_preset_and_the_image_stays() -> None:
    presets = Presets([preset()])
    world = World(presets=presets)
    world.submit(preset="h100-8")
    world.reconcile()
    world.reconcile()
    for index in (0, 1):
        world.pod(index, running={"startedAt": "2026-11-21T12:00:00Z"})
    changed = copy.deepcopy(H100_8)
    changed["images"]["PyTorch"] = "newer"
    changed["roles"]["worker"]["template"]["spec"]["nodeSelector"] = {"node": "h200-8"}
    world.reconcile()
    presets.update([preset(**changed)])
    world.reconcile()
    assert {pod["spec"]["nodeSelector"]["node"] for pod in world.cluster.of("Pod")} == {"h100-8"}, "a running world is left alone"
    world.pod(1, terminated={"exitCode": 137, "finishedAt": "2026-11-21T12:00:01Z"})
    for _ in range(4):
        asyncio.run(world.reconciler.reconcile(KEY))
        alive = {pod["metadata"]["uid"] for pod in world.cluster.of("Pod")}
        for child in world.store.children(KEY):
            if child.view.uid not in alive:
                world.store.drop_child(KEY, child.view.uid)
    pods = world.cluster.of("Pod")
    assert [pod["metadata"]["labels"]["muster.dev/attempt"] for pod in pods] == ["1", "1"]
    assert {pod["spec"]["nodeSelector"]["node"] for pod in pods} == {"h200-8"}
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"registry.example.com/torch:cu128"}


def test_the_job_policy_does_not_apply_to_fields_of_the_preset() -> None:
    strict = {"templates": Templates.RESTRICTED, "volumes": [], "max_replicas_per_job": 2}
    judge = admission(Presets([preset()]), **strict)
    assert judge.admit(obj(NAMED)).problems == ()
    tolerating = {"spec": {"tolerations": [{"operator": "Exists"}]}}
    own = {**NAMED, "roles": {"worker": {"replicas": 2, "template": tolerating}}}
    assert [each.field for each in judge.admit(obj(own, generation=2)).problems] == ["spec.roles.worker.template.spec.tolerations"]
    many = {**NAMED, "roles": {"worker": {"replicas": 3}}}
    assert [each.field for each in judge.admit(obj(many, generation=3)).problems] == ["spec.roles"]


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        ("containers", {"name": "agent", "image": "evil"}),
        ("initContainers", {"name": "tune", "command": ["evil"]}),
        ("volumes", {"name": "keys", "emptyDir": {}}),
    ],
)
def test_a_job_does_not_change_a_side_car_or_a_volume_of_its_preset(kind: str, item: dict[str, Any]) -> None:
    spec = {
        "containers": [{"name": "agent", "image": "agent:1", "securityContext": {"privileged": True}}],
        "initContainers": [{"name": "tune", "image": "tune:1", "securityContext": {"privileged": True}}],
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
    }
    judge = admission(Presets([preset(template={"spec": spec})]))
    own = {**NAMED, "roles": {"worker": {"replicas": 2, "template": {"spec": {kind: [item]}}}}}
    [problem] = judge.admit(obj(own)).problems
    assert problem.field == f"spec.roles.worker.template.spec.{kind}"
    assert absent(problem.message, item["name"], "preset h100-8", "another name") == []
    other = {**NAMED, "roles": {"worker": {"replicas": 2, "template": {"spec": {kind: [{**item, "name": "mine", "image": "mine"}]}}}}}
    assert kind == "volumes" or judge.admit(obj(other, generation=2)).problems == ()


KEYS = {"name": "keys", "mountPath": "/keys", "subPath": "public", "readOnly": True}
GUARDED: dict[str, Any] = {
    "serviceAccountName": "puller",
    "containers": [
        {
            "name": "trainer",
            "volumeMounts": [KEYS],
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "public"}}}],
        },
        {"name": "agent", "image": "agent:1", "resources": {"claims": [{"name": "admin"}]}},
    ],
    "initContainers": [{"name": "tune", "image": "tune:1", "volumeMounts": [{"name": "keys", "mountPath": "/all"}]}],
    "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}, {"name": "disk", "persistentVolumeClaim": {"claimName": "raw"}}],
    "resourceClaims": [{"name": "admin", "resourceClaimTemplateName": "admin"}],
}
"""A preset with a part of every kind."""


def trainer(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "trainer", **fields}]}


def side_car(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "mine", "image": "mine", **fields}]}


TOKEN = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
MISUSES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a Secret in the trainer at another path": (trainer(volumeMounts=[{"name": "keys", "mountPath": "/x"}]), "containers", "keys"),
    "all of a Secret of which it has a part": (trainer(volumeMounts=[{"mountPath": "/keys", "subPath": ""}]), "containers", "keys"),
    "a volume that may be written": (trainer(volumeMounts=[{"mountPath": "/keys", "readOnly": False}]), "containers", "keys"),
    "a Secret in a side-car": (side_car(volumeMounts=[{"name": "keys", "mountPath": "/x"}]), "containers", "keys"),
    "a Secret in an init container": (
        {"initContainers": [{"name": "mine", "image": "mine", "volumeMounts": [{"name": "keys", "mountPath": "/x"}]}]},
        "initContainers",
        "keys",
    ),
    "a disk": (side_car(volumeDevices=[{"name": "disk", "devicePath": "/dev/x"}]), "containers", "disk"),
    "a device": (trainer(resources={"claims": [{"name": "admin"}]}), "containers", "admin"),
    "the claim of a device": ({"resourceClaims": [{"name": "admin", "resourceClaimName": "mine"}]}, "resourceClaims", "admin"),
    "another key of a Secret": (
        trainer(env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"key": "password"}}}]),
        "containers",
        "TOKEN",
    ),
    "a token": ({"automountServiceAccountToken": True}, "automountServiceAccountToken", "account"),
    "a token in a volume": ({"volumes": [{"name": "mine", **TOKEN}]}, "volumes", "account"),
    "the processes of a side-car": ({"shareProcessNamespace": True}, "shareProcessNamespace", "leave it out"),
    "the addresses of a side-car": ({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["vault"]}]}, "hostAliases", "leave it out"),
    "the user of a side-car": ({"securityContext": {"runAsUser": 0}}, "securityContext", "leave it out"),
    "no side-car": ({"$patch": "replace", **trainer(image="x")}, "containers", "agent"),
    "no init container": ({"$patch": "replace", **trainer(image="x")}, "initContainers", "tune"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_job_uses_parts_of_its_preset_only_as_the_preset_does(misuse: str, tmp_path: Path) -> None:
    spec, field, word = MISUSES[misuse]
    guarded = preset(template={"spec": GUARDED})
    own = {**NAMED, "roles": {"worker": {"replicas": 2, "template": {"spec": spec}}}}
    found = admission(Presets([guarded])).admit(obj(own)).problems
    assert f"spec.roles.worker.template.spec.{field}" in [each.field for each in found]
    assert absent(str(found), word, "preset h100-8") == []
    file, job = tmp_path / "presets.yaml", tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(guarded))
    job.write_text(yaml.safe_dump({**yaml.safe_load(JOB), "spec": own}))
    for take in (with_preset, with_preset_written_out):
        with pytest.raises(InvalidJobError) as refused:
            take(read_job(job), file)
        assert tuple(refused.value.problems) == found, "render and validate say the same"


def test_a_variable_of_all_roles_does_not_take_another_key_of_a_secret_of_the_preset() -> None:
    def found(reference: dict[str, str]) -> tuple[Problem, ...]:
        env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": reference}}]
        own = {**NAMED, "trainer": {"task": "digits", "env": env}}
        return admission(Presets([preset(template={"spec": GUARDED})])).admit(obj(own)).problems

    assert "TOKEN" in str(found({"key": "password"}))
    assert found({"name": "own", "key": "own"}) == ()


def test_a_claim_of_a_role_does_not_take_a_device_of_the_preset() -> None:
    claims = [{"name": "admin", "resourceClaimTemplateName": "mine"}]
    own = {**NAMED, "roles": {"worker": {"replicas": 2, "resourceClaims": claims}}}
    found = admission(Presets([preset(template={"spec": GUARDED})])).admit(obj(own)).problems
    assert {each.field for each in found} == {f"spec.roles.worker.template.spec.{each}" for each in ("resourceClaims", "containers")}


def test_a_job_may_set_what_all_containers_share_if_its_preset_has_none_of_its_own() -> None:
    patches = {"initContainers": [{"name": "muster-inputs", "resources": {"limits": {"cpu": "1"}}}], **trainer(image="torch")}
    shared = {"securityContext": {"fsGroup": 1000}, "hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    own = {**NAMED, "roles": {"worker": {"replicas": 2, "template": {"spec": shared}}}}
    assert admission(Presets([preset(template={"spec": patches})])).admit(obj(own)).problems == ()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        trainer(image="mine", env=[{"name": "TOKEN", "value": "x"}]),
        trainer(env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "own", "key": "own"}}}]),
        trainer(volumeMounts=[dict(KEYS)]),
        {**side_car(volumeMounts=[{"name": "own", "mountPath": "/x"}]), "volumes": [{"name": "own", "emptyDir": {}}]},
        {"serviceAccountName": "own", "automountServiceAccountToken": True, "volumes": [{"name": "own", **TOKEN}]},
        {"nodeSelector": {"pool": "a"}, "tolerations": [{"operator": "Exists"}]},
    ],
)
def test_a_job_with_a_preset_may_have_parts_of_its_own(spec: dict[str, Any]) -> None:
    own = {**NAMED, "roles": {"worker": {"replicas": 2, "template": {"spec": spec}}}}
    assert admission(Presets([preset(template={"spec": GUARDED})])).admit(obj(own)).problems == ()


JOB = """\
apiVersion: muster.dev/v1beta1
kind: TrainingJob
metadata: {name: digits}
spec: {strategy: DDP, preset: h100-8, trainer: {task: digits}}
"""


@pytest.mark.parametrize("many", [False, True])
def test_a_file_has_one_preset_or_a_list_as_kubectl_prints_it(tmp_path: Path, many: bool) -> None:
    file = tmp_path / "presets.yaml"
    printed = {**preset(), "metadata": {"name": "h100-8", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-11-21T12:00:00Z"}}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [printed, preset("other")]} if many else printed))
    job = parse_job(JOB, source="job.yaml")
    applied, [defaults] = with_preset(job, file)
    assert (applied.spec.preset, defaults.preset) == ("h100-8", "h100-8")
    out = with_preset_written_out(job, file).spec
    assert out.preset is None
    assert out.roles["worker"].template["spec"]["nodeSelector"] == {"node": "h100-8"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a TrainingPreset"),
        ("kind: Pod\nmetadata: {name: h100-8}\n", "is not a TrainingPreset"),
        ("kind: List\nitems: 3\n", "is not a TrainingPreset"),
        ("kind: List\nitems: [{kind: TrainingPreset}]\n", "is not a TrainingPreset"),
        ("a: &a [*a, *a]\n", "presets.yaml"),
        ("\x00", "presets.yaml"),
    ],
)
def test_a_file_without_a_preset_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "presets.yaml"
    file.write_text(text)
    with pytest.raises(InvalidJobFileError, match=message):
        read_presets(file)


def test_the_error_without_a_file_names_the_command_that_gets_it() -> None:
    job = parse_job(JOB, source="job.yaml")
    for take in (with_preset, with_preset_written_out):
        with pytest.raises(InvalidJobError, match="kubectl get trainingpreset h100-8 -o yaml"):
            take(job, None)
