"""RayJobs of KubeRay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from muster.admission.yaml_text import UnreadableYamlError, read_yaml
from muster.tools.convert.job import LIMITS, Conversion, ConvertError, count, mapping, mappings, write_limits
from muster.tools.convert.pods import Template, add_variables, differences, write_role
from muster.tools.convert.programs import Program, split, write

Document = Mapping[str, Any]
_KNOWN = ("entrypoint", "runtimeEnvYAML", "rayClusterSpec", "shutdownAfterJobFinishes", "submissionMode", "jobId", *LIMITS)


def ray_job(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`ray.io RayJob`: the head's group and the workers' groups become the roles, and the entrypoint the program."""
    spec = mapping(document.get("spec"), "spec")
    cluster = mapping(spec.get("rayClusterSpec"), "spec.rayClusterSpec")
    if not cluster:
        raise ConvertError(
            "spec.rayClusterSpec: is required: a TrainingJob brings its own Ray cluster, and does not use one that runs (clusterSelector)"
        )
    if not spec.get("entrypoint"):
        raise ConvertError("spec.entrypoint: is required: a TrainingJob runs a program, and has no interactive mode")
    job.set("strategy", "Ray")
    head = Template(mapping(cluster.get("headGroupSpec"), "headGroupSpec").get("template"), "headGroupSpec.template", ("ray-head",))
    groups = mappings(cluster.get("workerGroupSpecs"), "spec.rayClusterSpec.workerGroupSpecs")
    if image := head.container.get("image"):
        job.set("trainer.image", str(image))
    write(job, _program(str(spec["entrypoint"])))
    roles = [write_role(job, "head", head, 1)]
    if groups:
        first = Template(groups[0].get("template"), "workerGroupSpecs[0].template", ("ray-worker",))
        number = sum(count(each.get("replicas"), f"workerGroupSpecs[{index}].replicas") for index, each in enumerate(groups))
        roles.append(write_role(job, "worker", first, max(1, number)))
        for index, each in enumerate(groups[1:], start=1):
            other = Template(each.get("template"), f"workerGroupSpecs[{index}].template", ("ray-worker",))
            if changed := differences(first, other):
                job.note(
                    f"spec.rayClusterSpec.workerGroupSpecs[{index}]",
                    f"differs from the first group in {', '.join(changed)}; a TrainingJob has one kind of worker",
                )
        if any(each.get("minReplicas") != each.get("maxReplicas") for each in groups) or cluster.get("enableInTreeAutoscaling"):
            job.note("spec.roles.worker.replicas", "is fixed: the number of Ray nodes does not change while the job runs")
    _start_parameters(job, "head", mapping(cluster.get("headGroupSpec"), "headGroupSpec"))
    for each in groups[:1]:
        _start_parameters(job, "worker", each)
    variables = _runtime_environment(job, spec.get("runtimeEnvYAML"))
    for role in roles:
        add_variables(role, variables)
    write_limits(job, spec)
    if spec.get("shutdownAfterJobFinishes") is False:
        job.note("spec.shutdownAfterJobFinishes", "the pods end with the job; cleanPodPolicy: None keeps them for their logs")
    job.note("spec.trainer", "the head runs the entrypoint itself: its exit code is the result, and no submitter pod is needed")
    job.unmapped(spec, _KNOWN, "spec")


def _start_parameters(job: Conversion, role: str, group: Mapping[str, Any]) -> None:
    given = mapping(group.get("rayStartParams"), "rayStartParams")
    if kept := {name: str(value) for name, value in given.items() if name != "dashboard-host"}:
        job.set(f"trainer.config.rayStartParams.{role}", kept)


def _program(entrypoint: str) -> Program:
    if any(sign in entrypoint for sign in ("&&", "||", ";", "|", "\n", ">", "$")):
        return Program(["sh", "-c", entrypoint])
    return Program(split(entrypoint, "spec.entrypoint"))


def _runtime_environment(job: Conversion, text: Any) -> dict[str, str]:
    """The variables of a runtime environment. Notes what an image must have instead."""
    if not text:
        return {}
    try:
        found = mapping(read_yaml(str(text), top="env_vars, pip").data, "spec.runtimeEnvYAML")
    except UnreadableYamlError as error:
        raise ConvertError(f"spec.runtimeEnvYAML: {error}") from None
    for name, remedy in (
        ("pip", "install these packages in the image"),
        ("uv", "install these packages in the image"),
        ("conda", "install these packages in the image"),
        ("working_dir", "put the files into the image, or into a ConfigMap for spec.trainer.code"),
        ("py_modules", "put the modules into the image, or into a ConfigMap for spec.trainer.code"),
    ):
        if found.get(name):
            job.note(f"spec.runtimeEnvYAML.{name}", f"{remedy}: {json.dumps(found[name], default=str)[:200]}")
    job.unmapped(found, ("pip", "uv", "conda", "working_dir", "py_modules", "env_vars"), "spec.runtimeEnvYAML")
    return {str(name): str(value) for name, value in mapping(found.get("env_vars"), "spec.runtimeEnvYAML.env_vars").items()}
