"""What strategies refuse, and what they say to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.spec import StrategyName, TrainingJobSpec
from muster.strategies.registry import strategy_of

GPUS = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
ELASTIC = {"minReplicas": 1, "maxReplicas": 4}
BATCH: dict[str, Any] = {"batch": {"globalSize": 64}}
TPU = {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}


def problems(strategy: str, **spec: Any) -> dict[str, str]:
    parsed = TrainingJobSpec.model_validate({"strategy": strategy, "trainer": {"task": "digits"}, **spec})
    return {problem.field: problem.message for problem in strategy_of(parsed.strategy).problems(parsed)}


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("DDP", {"roles": {"ps": {}}}, "spec.roles.ps", "remove it (it has: worker)"),
    ("OneDevice", {"roles": {"evaluator": {}}}, "spec.roles.evaluator", "remove it"),
    ("Mirrored", {"roles": {"worker": {"replicas": 2}}}, "spec.roles.worker.replicas", "exactly 1 worker, not 2; write 1"),
    ("ParameterServer", {"roles": {"chief": {"replicas": 2}}}, "spec.roles.chief.replicas", "exactly 1 chief, not 2; write 1"),
    (
        "MultiWorkerMirrored",
        {"roles": {"evaluator": {"replicas": 3}}},
        "spec.roles.evaluator.replicas",
        "at most 1 evaluator, not 3; write 1",
    ),
    (
        "MultiWorkerMirrored",
        {"roles": {"worker": {"processesPerReplica": 2}}},
        "spec.roles.worker.processesPerReplica",
        "one process per replica, not 2; write 1",
    ),
    (
        "DDP",
        {"roles": {"worker": {"resources": {"limits": {"nvidia.com/gpu": "500m"}}}}},
        "spec.roles.worker.resources.limits[nvidia.com/gpu]",
        "write a whole number",
    ),
    # options of another strategy
    ("DDP", {"options": {"mesh": {"data": 2}}}, "spec.options.mesh", "no option of DDP; remove it"),
    ("DDP", {"options": {"loop": "Fit"}}, "spec.options.loop", "no option of DDP"),
    ("FSDP", {"options": {"pipeline": {}}}, "spec.options.pipeline", "(it has: mesh)"),
    ("Mirrored", {"options": {"tpu": TPU}}, "spec.options.tpu", "no option of Mirrored"),
    ("MultiWorkerMirrored", {"options": {"devices": ["GPU:0"]}}, "spec.options.devices", "(it has: loop)"),
    ("MultiWorkerMirrored", {"options": {"logicalDevices": 2}}, "spec.options.logicalDevices", "its CPU as one; remove it"),
    ("ParameterServer", {"options": {"logicalDevices": 2}}, "spec.options.logicalDevices", "or its CPU as one"),
    ("TPU", {"options": {"loop": "Fit", "tpu": TPU}}, "spec.options.loop", "nobody has tried Keras fit on a TPU; write Custom"),
    ("DDP", {"options": {"synchronous": True}}, "spec.options.synchronous", "no option of DDP"),
    (
        "FSDP",
        {"options": {"gradientCompression": "BF16"}},
        "spec.options.gradientCompression",
        "no option of FSDP; remove it (it has: mesh)",
    ),
    ("OneDevice", {"options": {"logicalDevices": 2}}, "spec.options.logicalDevices", "no option of OneDevice"),
    ("OneDevice", {"options": {"devices": ["GPU:0", "GPU:1"]}}, "spec.options.devices", "use Mirrored"),
    # communication
    ("DDP", {"communication": "NCCL"}, "spec.communication", "the workers have none"),
    ("DDP", {"communication": "Ring"}, "spec.communication", "choice of tf.distribute, and this is PyTorch; write Auto or Gloo or NCCL"),
    ("MultiWorkerMirrored", {"communication": "Gloo"}, "spec.communication", "Gloo is a library of PyTorch"),
    ("MultiWorkerMirrored", {"communication": "Hierarchical"}, "spec.communication", "devices of one machine, and this has several"),
    ("Mirrored", {"communication": "Ring"}, "spec.communication", "Ring connects several machines, and this is one"),
    ("ParameterServer", {"communication": "NCCL"}, "spec.communication", "does not all-reduce"),
    ("RPC", {"communication": "Gloo"}, "spec.communication", "write Auto"),
    (
        "DDP",
        {"communication": "NCCL", "roles": {"worker": {**GPUS, "processesPerReplica": 4}}},
        "spec.roles.worker.processesPerReplica",
        "4 processes would share 2; write 2 at most",
    ),
    # elasticity
    ("Pipeline", {"elastic": {"minReplicas": 1, "maxReplicas": 2}}, "spec.elastic", "use DDP or FSDP"),
    ("MultiWorkerMirrored", {"elastic": {"minReplicas": 1, "maxReplicas": 2}}, "spec.elastic", "remove it"),
    ("DDP", {"elastic": {"minReplicas": 4, "maxReplicas": 2}, **BATCH}, "spec.elastic.minReplicas", "write 2 or less"),
    ("DDP", {"elastic": {"minReplicas": 2, "maxReplicas": 4}, **BATCH}, "spec.roles.worker.replicas", "write 2 to 4"),
    ("DDP", {"elastic": {"minReplicas": 1, "maxReplicas": 4}}, "spec.batch.globalSize", "must be given"),
    (
        "DDP",
        {"elastic": ELASTIC, "batch": {"globalSize": 64, "learningRateScaling": "Linear"}},
        "spec.batch.learningRateScaling",
        "write None",
    ),
    ("DDP", {"elastic": ELASTIC, **BATCH, "trainer": {"command": ["x"], "supervisor": "Disabled"}}, "spec.elastic", "supervisor: Auto"),
    (
        "FSDP",
        {"elastic": ELASTIC, **BATCH, "options": {"mesh": {"data": 2}}, "roles": {"worker": {"replicas": 2}}},
        "spec.options.mesh",
        "leave out spec.elastic",
    ),
    # batch
    ("DDP", {"roles": {"worker": {"replicas": 4}}, "batch": {"globalSize": 3}}, "spec.batch.globalSize", "write at least 4"),
    ("Mirrored", {"options": {"logicalDevices": 4}, "batch": {"globalSize": 2}}, "spec.batch.globalSize", "write at least 4"),
    # TPU
    ("TPU", {}, "spec.options.tpu.topology", "write 2x4, say"),
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
        {"roles": {"worker": {"replicas": 2}}, "options": {"pipeline": {"stages": 2, "schedule": "Interleaved1F1B"}}},
        "spec.options.pipeline.stages",
        "write 4, say",
    ),
    (
        "Pipeline",
        {"roles": {"worker": {"replicas": 2}}, "options": {"pipeline": {"microBatches": 5, "schedule": "Interleaved1F1B"}}},
        "spec.options.pipeline.microBatches",
        "a multiple of the 2 processes in a row; write 4, say",
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
def test_what_a_strategy_cannot_do_is_said_with_a_remedy(strategy: str, spec: dict[str, Any], field: str, remedy: str) -> None:
    found = problems(strategy, **spec)
    assert list(found) == [field] if strategy != "TPU" else field in found
    assert remedy in found[field]


@pytest.mark.parametrize("strategy", [name for name in StrategyName if name is not StrategyName.TPU])
def test_a_job_that_says_nothing_but_its_strategy_is_fine(strategy: str) -> None:
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
        (
            "Pipeline",
            {
                "roles": {"worker": {"replicas": 2}},
                "options": {"pipeline": {"stages": 4, "schedule": "Interleaved1F1B", "microBatches": 8}},
            },
        ),
        ("RPC", {"options": {"synchronous": True}, "roles": {"worker": {"replicas": 3}, "ps": {"replicas": 2}}}),
    ],
)
def test_what_a_strategy_can_do_is_accepted(strategy: str, spec: dict[str, Any]) -> None:
    assert problems(strategy, **spec) == {}
