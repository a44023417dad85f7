"""Finds the documents of a file, and converts each with the function for its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.admission.read import InvalidJobFileError, check_job
from muster.admission.yaml_text import UnreadableYamlError, read_yaml, write_yaml
from muster.api.constants import KIND
from muster.strategies.registry import STRATEGIES
from muster.tools.convert import kubeflow, kubernetes, ray, scripts, spark
from muster.tools.convert.job import Conversion, ConvertError, mapping, named

Converter = Callable[[Conversion, Mapping[str, Any], Sequence[Mapping[str, Any]]], None]
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("kubeflow.org", "PyTorchJob"): kubeflow.pytorch_job,
    ("kubeflow.org", "TFJob"): kubeflow.tf_job,
    ("kubeflow.org", "MPIJob"): kubeflow.mpi_job,
    ("trainer.kubeflow.org", "TrainJob"): kubeflow.train_job,
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): kubeflow.hyperpod_job,
    ("ray.io", "RayJob"): ray.ray_job,
    ("sparkoperator.k8s.io", "SparkApplication"): spark.spark_application,
    ("batch", "Job"): kubernetes.plain_job,
    ("jobset.x-k8s.io", "JobSet"): kubernetes.job_set,
}
"""The function for each API group and kind."""
_ELSEWHERE = {
    "ScheduledSparkApplication": "convert the SparkApplication of its template, and create it from a CronJob",
    "RayCluster": "it runs no program; convert the RayJob that uses it",
    "RayService": "it serves requests, and a TrainingJob ends",
    "Kustomization": "print the result with kubectl kustomize, and convert that",
    KIND: "it is a TrainingJob already",
}
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")


def convert(text: str) -> list[Conversion]:
    """Converts each document of `text` that is a job. Raises ConvertError if there is none, or if one cannot be converted."""
    if re.match(r"#!.*\n", text) and "#SBATCH" in text:
        job = Conversion("a Slurm script")
        scripts.sbatch(job, text)
        return [_finished(job)]
    if "{{" in text and re.search(r"{{-?\s*[.\w]", text):
        raise ConvertError("the file is a Helm template: print the result with helm template, and convert that")
    documents = [_read(part, number) for number, part in enumerate(re.split(r"(?m)^---(?:[ \t].*)?$", text), start=1)]
    found = [each for each in documents if each]
    jobs = [each for each in found if _converter(each) is not None]
    if not jobs:
        raise ConvertError(_why_none(found))
    results = [_convert(each, [other for other in found if other is not each]) for each in jobs]
    others = [each for each in found if each not in jobs and each.get("kind") not in _RUNTIMES]
    for each in others:
        results[0].note(_origin(each), "is not converted; apply it as it is")
    return results


def written(results: Sequence[Conversion]) -> str:
    """The TrainingJobs as YAML, each below its notes."""
    return "---\n".join(_written(each) for each in results)


def _written(job: Conversion) -> str:
    lines = [f"# Converted from {job.origin}.", *(f"# - {note}" for note in job.notes)]
    return "\n".join(re.sub(r"[\r\n]+", " ", line) for line in lines) + "\n" + write_yaml(job.document()).rstrip("\n") + "\n"


def _read(text: str, number: int) -> dict[str, Any]:
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return {}
    try:
        data = read_yaml(text, top="apiVersion, kind, metadata and spec").data
    except UnreadableYamlError as error:
        raise ConvertError(f"document {number}, line {error.line}: {error}") from None
    if not isinstance(data, dict):
        raise ConvertError(f"document {number}: holds no job: write apiVersion, kind, metadata and spec at its top")
    return data


def _converter(document: Mapping[str, Any]) -> Converter | None:
    if "kind" not in document and isinstance(document.get("run"), str):
        return scripts.sky_task
    group = str(document.get("apiVersion", "")).partition("/")[0]
    return CONVERTERS.get((group, str(document.get("kind"))))


def _convert(document: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Conversion:
    metadata = mapping(document.get("metadata"), "metadata")
    job = Conversion(_origin(document))
    named(job, str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-") or document.get("name") or "converted"))
    job.namespace = str(metadata["namespace"]) if metadata.get("namespace") else None
    job.labels = dict(mapping(metadata.get("labels"), "metadata.labels"))
    if "generateName" in metadata:
        job.note("metadata.name", "a TrainingJob is found and resumes under its name; give each job a name of its own")
    converter = _converter(document)
    assert converter is not None
    converter(job, document, others)
    kubeflow.write_queue(job)
    return _finished(job)


def _finished(job: Conversion) -> Conversion:
    """The conversion with notes on what every job should have, and on what the result still lacks."""
    if job.spec["strategy"] not in STRATEGIES:
        raise ConvertError(f"{job.origin}: the strategy {job.spec['strategy']} is not installed here")
    job.note("spec.checkpoint", "add storage (a claim or a bucket): without it the job starts over after most failures")
    try:
        check_job(job.document(), source=job.name)
    except InvalidJobFileError as error:
        for problem in error.problems:
            job.note("correct before you apply it", str(problem), first=True)
    return job


def _origin(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else document.get("name")
    kind = document.get("kind") or ("task of SkyPilot" if "run" in document else "document")
    return f"{kind} {name}" if name else str(kind)


def _why_none(documents: Sequence[Mapping[str, Any]]) -> str:
    known = ", ".join(kind for _, kind in CONVERTERS)
    for each in documents:
        kind = str(each.get("kind"))
        if kind in _ELSEWHERE:
            return f"{_origin(each)} cannot be converted: {_ELSEWHERE[kind]}"
    kinds = ", ".join(sorted({_origin(each) for each in documents})) or "nothing"
    return f"the file has {kinds}, and no job to convert; muster convert reads {known}, tasks of SkyPilot and sbatch scripts"
