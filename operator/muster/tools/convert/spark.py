"""SparkApplications of spark-operator, if they run Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from muster.tools.convert.job import LIMITS, Conversion, ConvertError, count, mapping, mappings, texts, write_limits
from muster.tools.convert.pods import Template, write_role
from muster.tools.convert.programs import Program, write

Document = Mapping[str, Any]
_KNOWN = (
    *("type", "mode", "pythonVersion", "sparkVersion", "image", "imagePullPolicy", "imagePullSecrets", "mainApplicationFile", "arguments"),
    *("sparkConf", "driver", "executor", "volumes", "restartPolicy", "deps", "dynamicAllocation", "timeToLiveSeconds", *LIMITS),
)
_CONTAINER = ("env", "envFrom", "volumeMounts", "securityContext", "lifecycle")
_POD = ("affinity", "tolerations", "nodeSelector", "initContainers", "priorityClassName", "schedulerName", "hostNetwork", "dnsConfig")
_RESOURCES = ("cores", "coreRequest", "memory", "memoryOverhead", "gpu")
_READ = (*_CONTAINER, *_POD, *_RESOURCES, "instances", "labels", "annotations", "sidecars", "podSecurityContext", "image", "template")
_OF_SPARK_ON_KUBERNETES = re.compile(r"spark\.(?:kubernetes\.|dynamicAllocation\.|executor\.(?:instances|cores)$|master$|submit\.)")
_MEMORY = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_MIB = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1, "g": 1024, "t": 1 << 20}
_OVERHEAD = 1.4
_BESIDE_MIB = 512
"""The memory of a pod is that of Java's heap with the overhead of Python, and that of Spark's daemon: see docs/tasks/spark.md."""


def spark_application(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`sparkoperator.k8s.io SparkApplication`: its driver and executors become the roles, and its file the program."""
    spec = mapping(document.get("spec"), "spec")
    if (kind := str(spec.get("type", "Python"))) != "Python":
        raise ConvertError(f"spec.type: is {kind}, and a TrainingJob of Spark runs a Python program; keep this job in spark-operator")
    job.set("strategy", "Spark")
    if image := spec.get("image"):
        job.set("trainer.image", str(image))
    write(job, Program(["python3", _file(spec.get("mainApplicationFile")), *texts(spec.get("arguments"), "spec.arguments")]))
    _write_properties(job, mapping(spec.get("sparkConf"), "spec.sparkConf"))
    executor = mapping(spec.get("executor"), "spec.executor")
    _write_pod(job, "driver", mapping(spec.get("driver"), "spec.driver"), spec, 1)
    _write_pod(job, "executor", executor, spec, max(1, count(executor.get("instances"), "spec.executor.instances")))
    _write_restarts(job, mapping(spec.get("restartPolicy"), "spec.restartPolicy"))
    write_limits(job, {**spec, "ttlSecondsAfterFinished": spec.get("timeToLiveSeconds")})
    for name, values in mapping(spec.get("deps"), "spec.deps").items():
        if values:
            remedy = "put it into the image, or into a ConfigMap for spec.trainer.code"
            job.note(f"spec.deps.{name}", f"{remedy}: {', '.join(map(str, values)) if isinstance(values, list) else values}"[:200])
    if mapping(spec.get("dynamicAllocation"), "spec.dynamicAllocation").get("enabled"):
        job.note("spec.roles.executor.replicas", "is fixed: the number of executors does not change while the job runs")
    job.note("spec.trainer", "the driver runs the program itself: it needs no spark-submit, and no service account")
    job.unmapped(spec, _KNOWN, "spec")


def _file(value: Any) -> str:
    text = str(value or "")
    path = text.removeprefix("local://")
    if not path.endswith(".py") or "://" in path:
        raise ConvertError(
            f"spec.mainApplicationFile: is {text!r:.200}; put the Python program into the image and write local:///its/path.py, "
            "or into a ConfigMap for spec.trainer.code"
        )
    return path


def _write_properties(job: Conversion, given: Mapping[str, Any]) -> None:
    kept = {str(name): str(value) for name, value in given.items() if not _OF_SPARK_ON_KUBERNETES.match(str(name))}
    for name in given:
        if str(name) not in kept:
            job.note(f"spec.sparkConf.{name}", "is left out: Muster creates the pods, and sets the master and the number of executors")
    if kept:
        job.set("trainer.config.sparkConf", kept)


def _write_pod(job: Conversion, role: str, given: Mapping[str, Any], spec: Document, replicas: int) -> None:
    where = f"spec.{role}"
    template = mapping(given.get("template"), f"{where}.template")
    pod = mapping(template.get("spec"), f"{where}.template.spec")
    containers = mappings(pod.get("containers"), f"{where}.template.spec.containers")
    first = {**(containers[0] if containers else {}), **{name: given[name] for name in _CONTAINER if given.get(name)}, "name": role}
    if resources := _resources(job, role, given):
        first["resources"] = resources
    if spec.get("imagePullPolicy"):
        first["imagePullPolicy"] = spec["imagePullPolicy"]
    names = {name: given[name] for name in _POD if given.get(name)}
    if secrets := texts(spec.get("imagePullSecrets"), "spec.imagePullSecrets"):
        names["imagePullSecrets"] = [{"name": each} for each in secrets]
    if context := given.get("podSecurityContext"):
        names["securityContext"] = context
    mounted = {each.get("name") for each in mappings(first.get("volumeMounts"), f"{where}.volumeMounts")}
    if volumes := [each for each in mappings(spec.get("volumes"), "spec.volumes") if each.get("name") in mounted]:
        names["volumes"] = volumes
    others = [*containers[1:], *mappings(given.get("sidecars"), f"{where}.sidecars")]
    metadata = {name: given[name] for name in ("labels", "annotations") if given.get(name)}
    whole = {"metadata": metadata, "spec": {**pod, **names, "containers": [first, *others]}}
    if given.get("image") and given["image"] != spec.get("image"):
        job.note(f"{where}.image", "is left out: all roles have the image of spec.trainer.image")
    write_role(job, role, Template(whole, where, (role,)), replicas)
    job.unmapped({name: value for name, value in given.items() if name != "serviceAccount"}, _READ, where)


def _resources(job: Conversion, role: str, given: Mapping[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if given.get("cores") is not None:
        limits["cpu"] = count(given["cores"], f"spec.{role}.cores")
    if heap := _mib(given.get("memory"), f"spec.{role}.memory"):
        overhead = _mib(given.get("memoryOverhead"), f"spec.{role}.memoryOverhead")
        limits["memory"] = f"{ceil(heap * _OVERHEAD if overhead is None else heap + overhead) + _BESIDE_MIB}Mi"
        if overhead is not None:
            settings = job.spec["trainer"].setdefault("config", {}).setdefault("sparkConf", {})
            settings[f"spark.{role}.memory"] = f"{heap}m"
    gpu = mapping(given.get("gpu"), f"spec.{role}.gpu")
    if gpu.get("name"):
        limits[str(gpu["name"])] = count(gpu.get("quantity"), f"spec.{role}.gpu.quantity")
    requests = {"cpu": given["coreRequest"]} if given.get("coreRequest") else {}
    return {name: values for name, values in (("limits", limits), ("requests", requests)) if values}


def _mib(value: Any, where: str) -> int | None:
    """An amount of memory as Spark writes it, in MiB. A number without a unit is bytes."""
    if value is None:
        return None
    match = _MEMORY.fullmatch(str(value))
    if match is None:
        raise ConvertError(f"{where}: {value!r} is no amount of memory; write one such as 4g or 512m")
    return max(1, int(int(match[1]) * _MIB[match[2].lower()]))


def _write_restarts(job: Conversion, policy: Mapping[str, Any]) -> None:
    kind = policy.get("type")
    if kind == "Never":
        job.set("recovery.application.limit", 0)
    elif kind == "OnFailure" and policy.get("onFailureRetries") is not None:
        job.set("recovery.application.limit", count(policy["onFailureRetries"], "spec.restartPolicy.onFailureRetries"))
    elif kind == "Always":
        job.note("spec.restartPolicy", "is left out: a TrainingJob ends when its program has succeeded")
