"""The defaults that a job gets from a preset, and the fields of the job that they do not change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.admission.validate import problems
from muster.api.job import TrainingJob
from muster.api.preset import Defaults
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults, written_out
from muster.render.manifests import render
from muster.render.template_hash import template_hash_of
from muster.strategies.registry import strategy_of
from tests.support.golden_jobs import IMAGES, environment_of, job_of
from tests.support.presets import H100_8

PLAIN: dict[str, Any] = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}


def defaults(spec: dict[str, Any], name: str = "h100-8") -> JobDefaults:
    return JobDefaults.of(Defaults.model_validate(spec), preset=name)


def pods(job: TrainingJob, *layers: JobDefaults) -> list[dict[str, Any]]:
    """The pods of a job with these defaults. The defaults of the installation come first."""
    spec = job.spec
    for layer in reversed(layers):
        spec = layer.applied(spec)
    job = job.model_copy(update={"spec": spec})
    addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
    made = render(job, attempt=0, addresses=addresses, images=IMAGES, defaults=layers)
    return [each for each in made if each["kind"] == "Pod"]


def with_worker(**role: Any) -> dict[str, Any]:
    return {**PLAIN, "roles": {"worker": {"replicas": 2, **role}}}


@pytest.mark.parametrize(
    ("own", "limits", "requests"),
    [
        ({}, {"nvidia.com/gpu": "8", "memory": "1Ti"}, {"cpu": "64"}),
        ({"limits": {"nvidia.com/gpu": 4}}, {"memory": "1Ti", "nvidia.com/gpu": "4"}, {"cpu": "64"}),
        ({"limits": {"cpu": "8"}}, {"nvidia.com/gpu": "8", "memory": "1Ti", "cpu": "8"}, {}),  # a request of 64 would exceed it
        ({"requests": {"memory": "8Gi"}}, {"nvidia.com/gpu": "8"}, {"cpu": "64", "memory": "8Gi"}),
    ],
)
def test_a_resource_of_the_job_replaces_that_of_the_preset(own: dict[str, Any], limits: dict[str, str], requests: dict[str, str]) -> None:
    pod, *_ = pods(job_of(with_worker(resources=own)), defaults(H100_8))
    assert pod["spec"]["containers"][0]["resources"] == ({"limits": limits, "requests": requests} if requests else {"limits": limits})


def test_devices_of_a_preset_determine_the_world() -> None:
    made = pods(job_of(PLAIN), defaults(H100_8))
    assert [environment_of(pod)["WORLD_SIZE"] for pod in made] == ["16", "16"]
    pod, *_ = pods(job_of({"strategy": "DDP", "trainer": {"task": "digits"}}), defaults(H100_8))
    assert environment_of(pod)["WORLD_SIZE"] == "8", "the worker that a job has by default is one, too"


def test_the_job_comes_before_the_preset_and_the_preset_before_the_installation() -> None:
    def layer(value: str, *names: str, preset: str = "") -> JobDefaults:
        env = [{"name": name, "value": value} for name in names]
        template = {"spec": {"priorityClassName": value, "containers": [{"name": "trainer", "env": env}]}}
        return JobDefaults(template=template, preset=preset)

    own = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "NCCL_C", "value": "job"}]}]}}
    layers = (layer("installation", "NCCL_A", "NCCL_B", "NCCL_C"), layer("preset", "NCCL_B", "NCCL_C", preset="p"))
    pod, *_ = pods(job_of(with_worker(template=own)), *layers)
    env = environment_of(pod)
    assert (env["NCCL_A"], env["NCCL_B"], env["NCCL_C"]) == ("installation", "preset", "job")
    assert pod["spec"]["priorityClassName"] == "preset"


def test_each_template_may_override_labels_and_side_cars_of_lower_layers() -> None:
    def template(value: str) -> dict[str, Any]:
        return {"metadata": {"labels": {"a": value}}, "spec": {"containers": [{"name": "log", "image": value}]}}

    layers = (JobDefaults(template=template("installation")), JobDefaults(template=template("preset"), preset="p"))
    pod, *_ = pods(job_of(PLAIN), *layers)
    assert (pod["metadata"]["labels"]["a"], pod["spec"]["containers"][1]["image"]) == ("preset", "preset")
    own, *_ = pods(job_of(with_worker(template={"metadata": {"labels": {"a": "job"}}})), *layers)
    assert own["metadata"]["labels"]["a"] == "job"


def test_a_role_of_a_preset_overrides_its_other_fields_for_that_role_only() -> None:
    given = copy.deepcopy(H100_8)
    given["template"]["spec"]["nodeSelector"] = {"node": "any", "zone": "a"}
    job = job_of({"strategy": "ParameterServer", "trainer": {"task": "digits"}, "roles": {"worker": {}, "ps": {}, "chief": {}}})
    made = {pod["metadata"]["labels"]["muster.dev/role"]: pod["spec"] for pod in pods(job, defaults(given))}
    assert made["worker"]["nodeSelector"] == {"node": "h100-8", "zone": "a"}
    assert made["ps"]["nodeSelector"] == made["chief"]["nodeSelector"] == {"node": "any", "zone": "a"}
    assert "resources" not in made["ps"]["containers"][0]
    assert {each["key"] for each in made["ps"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "nvidia.com/gpu",
    }


def test_tolerations_are_merged_by_key_and_effect() -> None:
    own = [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "h100", "effect": "NoSchedule"}, {"key": "spot", "operator": "Exists"}]
    pod, *_ = pods(job_of(with_worker(template={"spec": {"tolerations": own}})), defaults(H100_8))
    assert pod["spec"]["tolerations"][2:] == own
    assert len(pod["spec"]["tolerations"]) == 4


def test_storage_of_the_job_replaces_the_whole_storage_of_the_preset() -> None:
    given = {"checkpoint": {"storage": {"uri": "s3://platform/runs", "secretRef": {"name": "s3-platform"}}}}
    job = job_of({**PLAIN, "checkpoint": {"storage": {"uri": "s3://elsewhere/runs"}}})
    storage = defaults(given).applied(job.spec).checkpoint.storage
    assert storage is not None
    assert (storage.uri, storage.secret_ref) == ("s3://elsewhere/runs", None)
    assert "s3-platform" not in str(pods(job, defaults(given))), "a job's own address never meets the preset's credentials"
    assert "s3-platform" in str(pods(job_of(PLAIN), defaults(given)))


def test_an_image_of_the_preset_is_used_only_by_jobs_without_an_image() -> None:
    tensorflow = {"strategy": "MultiWorkerMirrored", "trainer": {"task": "digits"}}
    own = {**PLAIN, "trainer": {"script": "train.py", "image": "own:1"}}
    images = [pods(job_of(spec), defaults(H100_8))[0]["spec"]["containers"][0]["image"] for spec in (PLAIN, own, tensorflow)]
    assert images == ["registry.example.com/torch:cu128", "own:1", "trainer-tensorflow:1"]


def test_another_preset_or_another_version_of_it_changes_the_form() -> None:
    spec = job_of(PLAIN).spec
    changed = copy.deepcopy(H100_8)
    changed["template"]["spec"]["containers"][0]["env"][0]["value"] = "eth1"
    other_role = copy.deepcopy(H100_8)
    other_role["roles"]["worker"]["template"]["spec"]["nodeSelector"] = {"node": "h200-8"}
    forms = [
        template_hash_of(spec, (JobDefaults(), *more)) for more in ((), *((defaults(each),) for each in (H100_8, changed, other_role)))
    ]
    assert len(set(forms)) == 4
    assert template_hash_of(spec, ()) == forms[0]


names = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["x", "y", None])
environments = st.dictionaries(st.sampled_from(["NCCL_DEBUG", "NCCL_IB_HCA", "OMP_NUM_THREADS"]), st.sampled_from(["1", "2"]), max_size=2)


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    env = [{"name": name, "value": value} for name, value in draw(environments).items()]
    keys = draw(st.lists(names, max_size=2, unique=True))
    effects = st.sampled_from(["NoSchedule", "NoExecute"])
    return {
        "metadata": {"labels": draw(st.dictionaries(names, st.sampled_from(["x", "y"]), max_size=2))},
        "spec": {
            "nodeSelector": draw(st.dictionaries(names, st.sampled_from(["x", "y"]), max_size=2)),
            "tolerations": [{"key": key, "operator": "Exists", "effect": draw(effects)} for key in keys],
            "containers": [{"name": "trainer", "env": env}],
        },
    }


LIMITS = st.fixed_dictionaries({}, optional={"nvidia.com/gpu": st.sampled_from([1, 2]), "memory": st.sampled_from(["1Gi", "2Gi"])})


@st.composite
def presets(draw: st.DrawFn) -> JobDefaults:
    roles = {
        name: {"resources": {"limits": draw(LIMITS)}, "template": draw(templates())}
        for name in draw(st.lists(st.sampled_from(["worker", "ps", "evaluator"]), unique=True))
    }
    storage = draw(st.sampled_from([{}, {"storage": {"uri": "s3://a/b"}}, {"storage": {"persistentVolumeClaim": {"claimName": "c"}}}]))
    return defaults({"template": draw(templates()), "roles": roles, "checkpoint": storage})


@settings(deadline=None, max_examples=25)
@given(
    strategy=st.sampled_from(["DDP", "FSDP", "ParameterServer", "MultiWorkerMirrored", "JAX"]),
    preset=presets(),
    own=templates(),
    limits=LIMITS,
    storage=st.sampled_from([{}, {"storage": {"uri": "s3://own/b"}}]),
)
def test_a_job_with_a_preset_equals_the_job_with_all_fields_written_out(
    strategy: str, preset: JobDefaults, own: dict[str, Any], limits: dict[str, int | str], storage: dict[str, Any]
) -> None:
    roles = {name: {} for name in strategy_of(strategy).roles if name in ("ps", "chief", "evaluator")}
    worker = {"replicas": 2, "template": own, "resources": {"limits": limits}}
    spec = {"strategy": strategy, "trainer": {"task": "digits"}, "roles": {**roles, "worker": worker}, "checkpoint": storage}
    job = job_of(spec)
    out = job.model_copy(update={"spec": written_out(job.spec, preset)})
    named, plain = pods(job, preset), pods(out)
    for pod in (*named, *plain):
        del pod["metadata"]["labels"]["muster.dev/template-hash"]
    assert named == plain
    assert not problems(out)
