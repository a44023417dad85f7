"""The jobs that strategies refuse, and the messages with remedies."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.validate import problems as problems_of
from muster.api.job import TrainingJob
from muster.strategies.registry import STRATEGIES

GPUS = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
ELASTIC = {"minReplicas": 1, "maxReplicas": 4}
BATCH: dict[str, Any] = {"batch": {"globalSize": 64}}
TPU = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}


def problems(strategy: str, **spec: Any) -> dict[str, str]:
    job = {"metadata": {"name": "job"}, "spec": {"strategy": strategy, "trainer": {"task": "digits"}, **spec}}
    return {problem.field: problem.message for problem in problems_of(TrainingJob.model_validate(job))}


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("DDP", {"roles": {"ps": {}}}, "spec.roles", "only worker with this strategy; remove all other roles"),
    ("OneDevice", {"roles": {"evaluator": {}}}, "spec.roles", "remove all other roles"),
    ("Mirrored", {"roles": {"worker": {"replicas": 2}}}, "spec.roles.worker.replicas", "must be 1 with this strategy, not 2"),
    ("ParameterServer", {"roles": {"chief": {"replicas": 2}}}, "spec.roles.chief.replicas", "must be 1 with this strategy, not 2"),
    (
        "MultiWorkerMirrored",
        {"roles": {"evaluator": {"replicas": 3}}},
        "spec.roles.evaluator.replicas",
        "must be 1 with this strategy, not 3",
    ),
    (
        "MultiWorkerMirrored",
        {"roles": {"worker": {"processesPerReplica": 2}}},
        "spec.roles.worker.processesPerReplica",
        "must be 1 with this strategy, or left out, not 2",
    ),
    (
        "DDP",
        {"roles": {"worker": {"resources": {"limits": {"nvidia.com/gpu": "500m"}}}}},
        "spec.roles.worker.resources.limits[nvidia.com/gpu]",
        "write a whole number",
    ),
    *(
        (
            strategy,
            {"trainer": {"command": command}, "roles": {"worker": {"replicas": 2}}},
            "spec.trainer.command",
            "leave --standalone out",
        )
        for strategy, command in (
            ("DDP", ["torchrun", "--standalone", "train.py"]),
            ("FSDP", ["python", "-m", "torch.distributed.run", "--nproc-per-node=1", "--standalone", "train.py"]),
            ("DDP", ["bash", "-c", "cd /work && exec torchrun --standalone train.py"]),
        )
    ),
    # options of another strategy
    ("DDP", {"options": {"mesh": {"data": 2}}}, "spec.options.mesh", "only for FSDP, TensorParallel and Pipeline; remove it"),
    ("DDP", {"options": {"loop": "Fit"}}, "spec.options.loop", "remove it"),
    ("FSDP", {"options": {"pipeline": {}}}, "spec.options.pipeline", "only for Pipeline; remove it"),
    ("Mirrored", {"options": {"tpu": TPU}}, "spec.options.tpu", "only for TPU; remove it"),
    ("MultiWorkerMirrored", {"options": {"devices": ["GPU:0"]}}, "spec.options.devices", "only for OneDevice, Mirrored and CentralStorage"),
    ("MultiWorkerMirrored", {"options": {"logicalDevices": 2}}, "spec.options.logicalDevices", "only for Mirrored and CentralStorage"),
    ("ParameterServer", {"options": {"logicalDevices": 2}}, "spec.options.logicalDevices", "only for Mirrored and CentralStorage"),
    ("TPU", {"options": {"loop": "Fit", "tpu": TPU}}, "spec.options.loop", "Keras fit is not supported on a TPU; write Custom"),
    ("DDP", {"options": {"synchronous": True}}, "spec.options.synchronous", "only for RPC; remove it"),
    (
        "FSDP",
        {"options": {"gradientCompression": "BF16"}},
        "spec.options.gradientCompression",
        "only for DDP; remove it",
    ),
    ("OneDevice", {"options": {"logicalDevices": 2}}, "spec.options.logicalDevices", "only for Mirrored and CentralStorage"),
    ("OneDevice", {"options": {"devices": ["GPU:0", "GPU:1"]}}, "spec.options.devices", "use Mirrored"),
    # communication
    ("DDP", {"communication": "NCCL"}, "spec.communication", "the replicas have none"),
    ("DDP", {"communication": "Ring"}, "spec.communication", "must be Auto, Gloo or NCCL with this strategy, not 'Ring'"),
    ("MultiWorkerMirrored", {"communication": "Gloo"}, "spec.communication", "must be Auto, NCCL or Ring"),
    ("MultiWorkerMirrored", {"communication": "Hierarchical"}, "spec.communication", "must be Auto, NCCL or Ring"),
    ("Mirrored", {"communication": "Ring"}, "spec.communication", "must be Auto, Hierarchical, NCCL or OneDevice"),
    ("ParameterServer", {"communication": "NCCL"}, "spec.communication", "must be Auto with"),
    ("RPC", {"communication": "Gloo"}, "spec.communication", "must be Auto with"),
    (
        "DDP",
        {"communication": "NCCL", "roles": {"worker": {**GPUS, "processesPerReplica": 4}}},
        "spec.roles.worker.processesPerReplica",
        "4 processes would share 2; write 2 at most",
    ),
    # elasticity
    ("Pipeline", {"elastic": {"minReplicas": 1, "maxReplicas": 2}}, "spec.elastic", "only DDP, FSDP and JAX can change"),
    ("MultiWorkerMirrored", {"elastic": {"minReplicas": 1, "maxReplicas": 2}}, "spec.elastic", "remove it"),
    ("DDP", {"elastic": {"minReplicas": 4, "maxReplicas": 2}, **BATCH}, "spec.elastic.minReplicas", "must not be more than maxReplicas"),
    (
        "DDP",
        {"elastic": {"minReplicas": 2, "maxReplicas": 4}, **BATCH},
        "spec.roles.worker.replicas",
        "must be from elastic.minReplicas to",
    ),
    ("DDP", {"elastic": {"minReplicas": 1, "maxReplicas": 4}}, "spec.batch.globalSize", "is required with elastic"),
    (
        "DDP",
        {"elastic": ELASTIC, "batch": {"globalSize": 64, "learningRateScaling": "Linear"}},
        "spec.batch.learningRateScaling",
        "must be None with elastic",
    ),
    ("DDP", {"elastic": ELASTIC, **BATCH, "trainer": {"command": ["x"], "supervisor": "Disabled"}}, "spec.elastic", "supervisor: Auto"),
    (
        "FSDP",
        {"elastic": ELASTIC, **BATCH, "options": {"mesh": {"data": 2}}, "roles": {"worker": {"replicas": 2}}},
        "spec.options.mesh",
        "leave out spec.elastic",
    ),
    (
        "JAX",
        {"elastic": ELASTIC, **BATCH, "roles": {"worker": {"replicas": 2}, "evaluator": {}}},
        "spec.roles.evaluator",
        "remove it, or remove spec.elastic",
    ),
    # batch
    ("DDP", {"roles": {"worker": {"replicas": 4}}, "batch": {"globalSize": 3}}, "spec.batch.globalSize", "write at least 4"),
    ("Mirrored", {"options": {"logicalDevices": 4}, "batch": {"globalSize": 2}}, "spec.batch.globalSize", "write at least 4"),
    # TPU
    ("TPU", {}, "spec.options.tpu.topology", "write 2x4, for example"),
    ("TPU", {"options": {"tpu": {"topology": "2x4"}}}, "spec.options.tpu.accelerator", "write tpu-v5-lite-podslice"),
    ("TPU", {"options": {"tpu": TPU}, "roles": {"worker": {"replicas": 3}}}, "spec.roles.worker.replicas", "divides them"),
    ("TPU", {"options": {"tpu": {**TPU, "topology": "4x8"}}}, "spec.roles.worker.replicas", "no host has 32 TPU chips; write at least 4"),
    (
        "TPU",
        {"options": {"tpu": TPU}, "roles": {"worker": {"replicas": 2, "resources": {"limits": {"google.com/tpu": 8}}}}},
        "spec.roles.worker.resources.limits[google.com/tpu]",
        "8 chips over 2 workers are 4 each, not 8",
    ),
    # mesh and pipeline
    (
        "FSDP",
        {"roles": {"worker": {"replicas": 4}}, "options": {"mesh": {"data": 4, "shard": 3}}},
        "spec.options.mesh.shard",
        "3 does not divide data, 4",
    ),
    (
        "TensorParallel",
        {"roles": {"worker": {"replicas": 2}}, "options": {"mesh": {"tensor": 2, "shard": 1}}},
        "spec.options.mesh.shard",
        "TensorParallel does not shard; remove it, or use FSDP",
    ),
    (
        "FSDP",
        {"roles": {"worker": {"replicas": 4}}, "options": {"mesh": {"data": 3}}},
        "spec.options.mesh",
        "is 3, but the job has 4 processes",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 4}}, "options": {"pipeline": {"stages": 2}}},
        "spec.options.pipeline.stages",
        "write 4, or options.mesh",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 3}}, "batch": {"globalSize": 64}},
        "spec.options.pipeline.microBatches",
        "3 micro-batches do not divide a batch of 64 samples; write a number that does, or batch.globalSize: 63",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 4}}, "options": {"mesh": {"data": 2, "pipeline": 2}, "pipeline": {"schedule": "PipeDream"}}},
        "spec.options.mesh.data",
        "write 1, or options.pipeline.schedule: 1F1B",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 2}}, "options": {"pipeline": {"schedule": "PipeDream"}}, "batch": {"accumulationSteps": 2}},
        "spec.batch.accumulationSteps",
        "PipeDream updates each stage by itself",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 4}}, "options": {"pipeline": {"schedule": "1F1B", "microBatches": 2}}},
        "spec.options.pipeline.microBatches",
        "write 4",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 2}}, "options": {"pipeline": {"microBatches": 16}}, "batch": {"globalSize": 8}},
        "spec.options.pipeline.microBatches",
        "16 micro-batches do not divide a batch of 8 samples",
    ),
]


@pytest.mark.parametrize(("strategy", "spec", "field", "remedy"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_an_unsupported_job_is_refused_with_a_remedy(strategy: str, spec: dict[str, Any], field: str, remedy: str) -> None:
    messages = problems(strategy, **spec)
    assert list(messages) == [field] if strategy != "TPU" else field in messages
    assert remedy in messages[field]


@pytest.mark.parametrize("strategy", [name for name, each in STRATEGIES.items() if name != "TPU" and each.runtime.engine])
def test_a_job_with_only_its_strategy_is_accepted(strategy: str) -> None:
    assert problems(strategy) == {}


@pytest.mark.parametrize(
    ("strategy", "spec"),
    [
        (
            "DDP",
            {
                "roles": {"worker": {"replicas": 4, **GPUS}},
                "communication": "NCCL",
                "elastic": {"minReplicas": 2, "maxReplicas": 8},
                **BATCH,
            },
        ),
        ("DDP", {"trainer": {"command": ["torchrun", "--standalone", "a.py"]}, "roles": {"worker": {"replicas": 1}}}),
        ("DDP", {"trainer": {"command": ["torchrun", "--nnodes=1", "--standalone", "a.py"]}, "roles": {"worker": {"replicas": 2}}}),
        ("DDP", {"trainer": {"command": ["torchrun", "a.py", "--alone"]}, "roles": {"worker": {"replicas": 2}}}),
        ("DDP", {"options": {"loop": "Custom"}}),
        ("DDP", {"communication": "Gloo", "roles": {"worker": {"processesPerReplica": 4}}}),
        (
            "Mirrored",
            {"roles": {"worker": GPUS}, "communication": "Hierarchical", "options": {"loop": "Fit", "devices": ["GPU:0", "GPU:1"]}},
        ),
        (
            "MultiWorkerMirrored",
            {
                "communication": "Ring",
                "roles": {"worker": {"replicas": 3, "processesPerReplica": 1}, "evaluator": {}},
                "options": {"loop": "Fit"},
            },
        ),
        ("ParameterServer", {"roles": {"worker": {"replicas": 3}, "ps": {"replicas": 2}, "evaluator": {}}, "options": {"loop": "Fit"}}),
        ("TPU", {"options": {"tpu": TPU}, "roles": {"worker": {"replicas": 2, "resources": {"limits": {"google.com/tpu": 4}}}}}),
        ("Pipeline", {"roles": {"worker": {"replicas": 4}}, "options": {"mesh": {"data": 2, "pipeline": 2}, "pipeline": {"stages": 2}}}),
        ("RPC", {"options": {"synchronous": True}, "roles": {"worker": {"replicas": 3}, "ps": {"replicas": 2}}}),
    ],
)
def test_a_supported_job_is_accepted(strategy: str, spec: dict[str, Any]) -> None:
    assert problems(strategy, **spec) == {}
