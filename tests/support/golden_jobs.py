"""Jobs to render: one for each strategy, with the fields that affect its manifests."""

from __future__ import annotations

from typing import Any

from muster.api.job import TrainingJob
from muster.render.addresses import ClusterAddresses
from muster.render.environment import Coordinator
from muster.render.images import Images
from muster.render.manifests import render

IMAGES = Images(
    {
        "Horovod": "trainer-horovod:1",
        "JAX": "trainer-jax:1",
        "MPI": "trainer-mpi:1",
        "PyTorch": "trainer-pytorch:1",
        "Ray": "trainer-ray:1",
        "Spark": "trainer-spark:1",
        "TensorFlow": "trainer-tensorflow:1",
    },
    supervisor="operator:1",
)
UID = "11111111-2222-3333-4444-555555555555"
CLAIM = {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}}
GPUS = {"limits": {"nvidia.com/gpu": 2, "cpu": "8"}}

JOBS: dict[str, dict[str, Any]] = {
    "one-device": {"strategy": "OneDevice", "trainer": {"task": "digits"}},
    "mirrored": {
        "strategy": "Mirrored",
        "trainer": {"task": "digits"},
        "roles": {"worker": {"resources": GPUS}},
        "communication": "Hierarchical",
        "checkpoint": CLAIM,
    },
    "central-storage": {
        "strategy": "CentralStorage",
        "trainer": {"module": "my_pkg.model", "code": {"configMap": {"name": "my-code"}}},
        "options": {"logicalDevices": 2, "loop": "Fit"},
    },
    "multi-worker-mirrored": {
        "strategy": "MultiWorkerMirrored",
        "trainer": {"task": "digits", "config": {"epochs": 5}},
        "roles": {"worker": {"replicas": 2, "resources": {"limits": {"cpu": "500m"}}}, "evaluator": {}},
        "checkpoint": {**CLAIM, "name": "shared", "everySeconds": 60, "gracePeriodSeconds": 30},
    },
    "parameter-server": {
        "strategy": "ParameterServer",
        "trainer": {"task": "digits"},
        "roles": {"chief": {}, "worker": {"replicas": 2}, "ps": {}, "evaluator": {}},
        "checkpoint": {"storage": {"uri": "s3://bucket/runs/"}},
    },
    "tpu": {
        "strategy": "TPU",
        "trainer": {"task": "digits"},
        "roles": {"worker": {"replicas": 2}},
        "options": {"tpu": {"accelerator": "tpu-v5-lite-podslice", "topology": "2x4"}},
    },
    "ddp": {
        "strategy": "DDP",
        "trainer": {"task": "digits", "config": {"epochs": 5, "seed": 0}},
        "roles": {
            "worker": {
                "replicas": 2,
                "resources": GPUS,
                "template": {
                    "metadata": {"annotations": {"team": "vision"}},
                    "spec": {
                        "nodeSelector": {"pool": "spot"},
                        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
                        "containers": [
                            {"name": "trainer", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                            {"name": "logs", "image": "log-shipper:1", "env": [{"name": "LEVEL", "value": "info"}]},
                        ],
                    },
                },
            }
        },
        "batch": {"globalSize": 1024, "learningRateScaling": "Linear"},
        "checkpoint": CLAIM,
        "scheduling": {"priorityClassName": "training"},
    },
    "fsdp": {
        "strategy": "FSDP",
        "trainer": {"image": "mine:1", "command": ["torchrun", "train.py", "--note", "$(HOME)"]},
        "roles": {"worker": {"replicas": 2, "processesPerReplica": 2}},
        "options": {"mesh": {"data": 2, "tensor": 2}},
    },
    "tensor-parallel": {
        "strategy": "TensorParallel",
        "trainer": {"image": "mine:1", "script": "train.py --lr '0.1 0.2'", "code": {"configMap": {"name": "my-code"}}},
        "roles": {"worker": {"replicas": 2}},
    },
    "pipeline": {
        "strategy": "Pipeline",
        "trainer": {"task": "digits"},
        "roles": {"worker": {"replicas": 2}},
        "options": {"pipeline": {"microBatches": 4}},
        "checkpoint": {"storage": {"uri": "file:///mnt/my%20runs"}, "resume": "Never"},
    },
    "rpc": {"strategy": "RPC", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}, "options": {"synchronous": True}},
    "jax": {
        "strategy": "JAX",
        "trainer": {"task": "digits"},
        "roles": {"worker": {"replicas": 2, "resources": GPUS}, "evaluator": {}},
        "checkpoint": CLAIM,
    },
    "ray": {
        "strategy": "Ray",
        "trainer": {
            "script": "train.py",
            "code": {"configMap": {"name": "ray"}},
            "config": {"rayStartParams": {"head": {"include-dashboard": "true"}, "worker": {"resources": '{"disk":1}'}}},
        },
        "roles": {"worker": {"replicas": 2, "resources": GPUS}},
        "checkpoint": CLAIM,
    },
    "spark": {
        "strategy": "Spark",
        "trainer": {
            "script": "train.py",
            "code": {"configMap": {"name": "spark"}},
            "config": {"sparkConf": {"spark.sql.shuffle.partitions": 8}},
        },
        "roles": {
            "driver": {"resources": {"limits": {"memory": "4Gi"}}},
            "executor": {"replicas": 2, "resources": {"limits": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": 1}}},
        },
        "checkpoint": CLAIM,
    },
    "horovod": {
        "strategy": "Horovod",
        "trainer": {"script": "train.py", "code": {"configMap": {"name": "horovod"}}},
        "roles": {"worker": {"replicas": 2, "processesPerReplica": 2}},
        "checkpoint": CLAIM,
    },
    "mpi": {
        "strategy": "MPI",
        "trainer": {"script": "train.py", "code": {"configMap": {"name": "mpi"}}},
        "roles": {"worker": {"replicas": 2, "resources": GPUS}},
        "checkpoint": CLAIM,
    },
}


def job_of(spec: dict[str, Any], **metadata: Any) -> TrainingJob:
    defaults = {"name": "job", "namespace": "ns", "uid": UID, "creationTimestamp": "2026-11-21T11:16:14Z"}
    return TrainingJob.model_validate({"metadata": {**defaults, **metadata}, "spec": spec})


def manifests_of(job: TrainingJob, attempt: int = 2) -> list[dict[str, Any]]:
    addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
    coordinator = Coordinator("https://muster.muster-system.svc:8443", "PEM")
    manifests = render(job, attempt=attempt, addresses=addresses, images=IMAGES, coordinator=coordinator)
    for secret in (each for each in manifests if each["kind"] == "Secret"):
        secret["stringData"] = dict.fromkeys(secret["stringData"], "(random)")
    return manifests


def pods_of(spec: dict[str, Any], **metadata: Any) -> dict[str, dict[str, Any]]:
    """Pods by name."""
    return {pod["metadata"]["name"]: pod for pod in manifests_of(job_of(spec, **metadata)) if pod["kind"] == "Pod"}


def trainer_of(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = next(each for each in pod["spec"]["containers"] if each["name"] == "trainer")
    return container


def environment_of(pod: dict[str, Any]) -> dict[str, str]:
    """The variables with plain values, as a kubelet would expand them (there are no references)."""
    return {each["name"]: each["value"].replace("$$", "$") for each in trainer_of(pod)["env"] if "value" in each}
