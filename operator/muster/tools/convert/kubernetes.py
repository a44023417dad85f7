"""Jobs and JobSets of Kubernetes whose pods run one distributed program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.tools.convert.job import LIMITS, Conversion, ConvertError, count, mapping, mappings, write_limits
from muster.tools.convert.kubeflow import write_workers
from muster.tools.convert.pods import Template

Document = Mapping[str, Any]
_NETWORK = "Muster sets MASTER_ADDR, RANK and WORLD_SIZE, so a headless Service and variables made from the pod's index are not needed"


def plain_job(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`batch/v1 Job`: its pods are the workers."""
    spec = mapping(document.get("spec"), "spec")
    replicas = count(spec.get("parallelism"), "spec.parallelism")
    completions = count(spec.get("completions"), "spec.completions", default=replicas)
    if completions > replicas:
        raise ConvertError(
            f"spec.completions: {completions} pods, of which {replicas} run at once, are independent work and no distributed training; "
            "keep the Job, or write as many TrainingJobs"
        )
    job.set("strategy", "DDP")
    write_workers(job, Template(spec.get("template"), "spec.template", ("trainer",)), replicas)
    write_limits(job, spec)
    job.note("spec.strategy", _NETWORK)
    job.unmapped(spec, ("parallelism", "completions", "completionMode", "template", *LIMITS, "selector", "podReplacementPolicy"), "spec")


def job_set(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`jobset.x-k8s.io JobSet`: the pods of one replicated job are the workers."""
    spec = mapping(document.get("spec"), "spec")
    groups = mappings(spec.get("replicatedJobs"), "spec.replicatedJobs")
    if len(groups) != 1:
        names = ", ".join(str(each.get("name")) for each in groups) or "none"
        raise ConvertError(
            f"spec.replicatedJobs: a TrainingJob comes from one replicated job, and the file has {len(groups)} ({names}); "
            "leave the one that trains, and write the other pods as a Deployment or Job"
        )
    group = groups[0]
    inner = mapping(mapping(group.get("template"), "spec.replicatedJobs[0].template").get("spec"), "spec.replicatedJobs[0].template.spec")
    number = count(group.get("replicas"), "spec.replicatedJobs[0].replicas") * count(inner.get("parallelism"), "parallelism")
    job.set("strategy", "DDP")
    write_workers(job, Template(inner.get("template"), "spec.replicatedJobs[0].template.spec.template", ("trainer",)), number)
    write_limits(job, inner)
    policy = mapping(spec.get("failurePolicy"), "spec.failurePolicy")
    if "maxRestarts" in policy:
        job.set("recovery.application.limit", count(policy["maxRestarts"], "spec.failurePolicy.maxRestarts"))
    job.unmapped(policy, ("maxRestarts", "restartStrategy"), "spec.failurePolicy", "is left out: the class of a failure decides")
    write_limits(job, spec)
    job.note("spec.strategy", _NETWORK)
    job.unmapped(spec, ("replicatedJobs", "failurePolicy", "network", "successPolicy", "suspend", "ttlSecondsAfterFinished"), "spec")
