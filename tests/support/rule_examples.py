"""Parts of specs that break one rule of `admission/rules.py` each, and parts that break none. They replace fields of a DDP job of the task
digits with two workers."""

from __future__ import annotations

from typing import Any

ELASTIC = {"minReplicas": 1, "maxReplicas": 4}
SIZE = {"globalSize": 64}


def pod(**fields: object) -> dict[str, Any]:
    return {"roles": {"worker": {"template": {"spec": fields}}}}


WRONG: list[dict[str, Any]] = [
    {"elastic": ELASTIC},
    {"elastic": ELASTIC, "batch": {**SIZE, "learningRateScaling": "Linear"}},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"command": ["x"], "supervisor": "Disabled"}},
    {"trainer": {"task": "digits", "image": ""}},
    {"trainer": {"task": "digits", "image": "own image"}},
    {"trainer": {"module": "../x"}},
    {"trainer": {"module": "my pkg"}},
    {"trainer": {"task": "digits", "script": "train.py"}},
    {"trainer": {"task": "digits", "args": ["--fast"]}},
    {"trainer": {"task": "digits", "supervisor": "Disabled"}},
    {"trainer": {"script": "train.py", "input": {"workers": 2}}},
    {"trainer": {"script": "train.py", "input": {"shard": "File"}}},
    {"trainer": {"script": "train.py", "settings": {"epochs": 2}}},
    {"trainer": {"command": ["train"], "settings": {"export": "model"}}},
    {"trainer": {"task": "digits", "code": {"configMap": {"name": "My_Code"}}}},
    {"checkpoint": {"storage": {}}},
    {"checkpoint": {"storage": {"uri": "/data"}}},
    {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "a"}, "secretRef": {"name": "keys"}}}},
    {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "A"}}}},
    {"checkpoint": {"storage": {"uri": "s3://a", "secretRef": {"name": "My Keys"}}}},
    {"checkpoint": {"resume": "never"}},
    {"checkpoint": {"memory": {"sizeMib": 64}}, "strategy": "JAX"},
    {"checkpoint": {"memory": {"sizeMib": 64}}, "trainer": {"script": "train.py"}},
    {"inputs": [{"name": "Base", "source": "hf://org/tiny"}]},
    {"inputs": [{"name": "base", "source": "https://example.com/tiny"}]},
    {"inputs": [{"name": "base", "source": "hf://tiny"}]},
    {"inputs": [{"name": "base", "source": "s3://bucket", "secretRef": {"name": "My Keys"}}]},
    {"roles": {"worker": {"resourceClaims": [{"name": "My GPUs", "resourceClaimName": "a"}]}}},
    {"roles": {"worker": {"resourceClaims": [{"name": "gpus"}]}}},
    {"roles": {"worker": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]}}},
    {"roles": {"worker": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "A"}]}}},
    {"roles": {"worker": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "a_b"}]}}},
    {"scheduling": {"queue": "My Queue"}},
    {"scheduling": {"priorityClassName": "-"}},
    {"scheduling": {"topology": {"pack": "rack="}}},
    {"managedBy": "muster"},
    {"roles": {"ps": {}}},
    {"strategy": "Mirrored"},
    {"strategy": "MultiWorkerMirrored", "roles": {"evaluator": {"replicas": 2}}},
    {"strategy": "ParameterServer", "roles": {"ps": {"processesPerReplica": 2}}},
    {"options": {"mesh": {"data": 2}}},
    {"options": {"loop": "Fit"}},
    {"options": {"synchronous": True}},
    {"strategy": "FSDP", "options": {"gradientCompression": "BF16"}},
    {"communication": "Ring"},
    {"communication": "NCCL"},
    {"strategy": "Pipeline", "elastic": ELASTIC, "batch": SIZE},
    {"elastic": {"minReplicas": 4, "maxReplicas": 2}, "batch": SIZE},
    {"elastic": {"minReplicas": 3, "maxReplicas": 4}, "batch": SIZE},
    {"elastic": {"minReplicas": 2, "maxReplicas": 4}, "batch": SIZE, "roles": {}},
    pod(restartPolicy="Always"),
    pod(containers=[{"name": "trainer", "command": ["x"]}]),
    pod(initContainers=[{"name": "trainer", "args": ["x"]}]),
    pod(containers=[{"name": "other", "env": [{"name": "RANK", "value": "1"}]}]),
    pod(containers=[{"name": "trainer", "env": [{"name": "MUSTER_X", "value": "1"}]}]),
]
RIGHT: list[dict[str, Any]] = [
    {"elastic": ELASTIC, "batch": SIZE},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"script": "train.py"}},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"module": "my_pkg.model", "image": "own.example.com:5000/ml/own:1"}},
    {"elastic": ELASTIC, "batch": SIZE, "trainer": {"command": ["x"], "image": "own:1"}},
    {"elastic": ELASTIC, "batch": SIZE, "roles": {}},
    {"trainer": {"task": "digits", "settings": {"epochs": 2, "learningRate": 0.5, "optimizer": "Adam", "export": "model"}}},
    {"trainer": {"task": "digits", "input": {"workers": 0, "shard": "File", "cache": "/dev/shm"}, "code": {"configMap": {"name": "a.b"}}}},
    {"checkpoint": {"storage": {"uri": "s3://bucket/a", "secretRef": {"name": "keys"}}, "resume": "/checkpoints/a"}},
    {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "a"}}, "resume": "Never"}},
    {"checkpoint": {"memory": {"everySteps": 1, "copies": 1, "sizeMib": 64}}, "strategy": "FSDP"},
    {
        "scheduling": {"queue": "a.b", "priorityClassName": "high", "topology": {"pack": "example.com/Rack_1"}},
        "managedBy": "kueue.x-k8s.io/multikueue",
    },
    {"inputs": [{"name": "base-model", "source": "hf://org/tiny@v1.0/sub/folder", "secretRef": {"name": "keys"}, "roles": ["worker"]}]},
    {"roles": {"worker": {"replicas": 2, "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "h100.large"}]}}},
    {
        "roles": {"worker": {"replicas": 2, "resourceClaims": [{"name": "a", "resourceClaimName": "shared"}]}},
        "communication": "NCCL",
    },
    {"inputs": [{"name": "rows", "source": "hf://datasets/org/rows"}, {"name": "more", "source": "s3://bucket/a/b/"}]},
    {"strategy": "ParameterServer", "roles": {"chief": {}, "ps": {"replicas": 2}, "evaluator": {"processesPerReplica": 1}}},
    {"strategy": "Mirrored", "roles": {"worker": {}}, "options": {"devices": ["GPU:0"], "loop": "Fit"}},
    {"strategy": "FSDP", "options": {"mesh": {"data": 2}}, "communication": "Gloo"},
    {"communication": "NCCL", "roles": {"worker": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}},
    {"communication": "NCCL", **pod(containers=[{"name": "trainer", "resources": {"limits": {"amd.com/gpu": 1}}}])},
    pod(containers=[{"name": "other", "command": ["x"], "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}], nodeSelector={"a": "b"}),
]
