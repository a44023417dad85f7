"""What to write for fields that users of other tools look for: PyTorchJob and TrainJob of Kubeflow, RayJob, SkyPilot, plain pods."""

from __future__ import annotations

from collections.abc import Mapping

from muster_contract.config import shared_name

_CONTAINER = "spec.roles.worker.template.spec.containers: [{name: trainer, %s}]"
_POD = "spec.roles.worker.template.spec.%s"
_ENV = "spec.trainer.env: [{name: NAME, value: text}], for all roles"
_GPUS = "spec.roles.worker.resources: {limits: {nvidia.com/gpu: 1}}"
_REPLICAS = "spec.roles.worker.replicas, the number of pods"
_PROCESSES = "spec.roles.worker.processesPerReplica"
_CLAIM = "spec.checkpoint.storage: {persistentVolumeClaim: {claimName: name}}"
_URI = "spec.checkpoint.storage: {uri: s3://bucket/prefix}"
_INPUT = "spec.inputs: [{name: data, source: s3://bucket/prefix}]"
_PROGRAM = "spec.trainer.script, the Python program with its arguments, or command, any other command"
_SETUP = "spec.trainer.image, the name of an image that has what the training needs"
_VOLUMES = f"{_POD % 'volumes'}, and volumeMounts of its container trainer"

WRITE: Mapping[str, str] = {
    # pods
    **dict.fromkeys(("env", "envs", "environment", "envVars", "env_vars"), _ENV),
    "envFrom": _CONTAINER % "envFrom: [{secretRef: {name: keys}}]",
    **dict.fromkeys(("volumes", "volumeMounts", "mounts", "podTemplateOverrides"), _VOLUMES),
    **dict.fromkeys(("file_mounts", "storage_mounts"), f"{_INPUT}, or {_VOLUMES}"),
    **{name: _POD % f"{name}" for name in ("nodeSelector", "tolerations", "affinity", "serviceAccountName", "imagePullSecrets")},
    "containers": _POD % "containers",
    "image": "spec.trainer.image",
    "image_id": "spec.trainer.image",
    "docker_image": "spec.trainer.image",
    "imagePullPolicy": _CONTAINER % "imagePullPolicy: Always",
    "priorityClass": "spec.scheduling.priorityClassName",
    "terminationGracePeriodSeconds": "spec.checkpoint.gracePeriodSeconds",
    # devices and numbers
    **dict.fromkeys(("gpu", "gpus", "accelerator", "accelerators", "num_gpus", "numGpus", "gpusPerReplica", "gpusPerWorker"), _GPUS),
    **dict.fromkeys(("cpu", "cpus"), "spec.roles.worker.resources: {limits: {cpu: 4}}"),
    "memory": "spec.roles.worker.resources: {limits: {memory: 16Gi}}",
    **dict.fromkeys(
        ("limits", "requests", "resources", "resourcesPerNode"), "spec.roles.worker.resources: {limits: {...}, requests: {...}}"
    ),
    **dict.fromkeys(
        (
            "numNodes",
            "num_nodes",
            "nnodes",
            "nodes",
            "numWorkers",
            "num_workers",
            "workers",
            "worldSize",
            "world_size",
            "replicas",
            "minMember",
        ),
        _REPLICAS,
    ),
    **dict.fromkeys(
        ("numProcPerNode", "nprocPerNode", "nproc_per_node", "nProcPerNode", "num_processes", "numProcesses", "slotsPerWorker"), _PROCESSES
    ),
    **dict.fromkeys(
        (
            "pytorchReplicaSpecs",
            "tfReplicaSpecs",
            "mpiReplicaSpecs",
            "jaxReplicaSpecs",
            "replicaSpecs",
            "workerGroupSpecs",
            "replicatedJobs",
        ),
        "spec.roles: {worker: {replicas: 2, template: {...}}}; Muster counts the former master as one of the workers",
    ),
    **dict.fromkeys(("Master", "Worker"), "spec.roles.worker with the replicas of both together"),
    "headGroupSpec": "spec.roles.worker; Muster needs no head, because its operator coordinates the job",
    # policies
    "runPolicy": "spec.cleanPodPolicy, spec.activeDeadlineSeconds, spec.ttlSecondsAfterFinished, spec.recovery and spec.suspend",
    **dict.fromkeys(
        ("backoffLimit", "restarts", "maxRestarts", "max_restarts", "retries", "max_restarts_on_errors", "restartPolicy", "job_recovery"),
        "spec.recovery.application.limit, the number of restarts after failures of the training code",
    ),
    **dict.fromkeys(("elasticPolicy", "minReplicas", "maxReplicas"), "spec.elastic: {minReplicas: 1, maxReplicas: 4}"),
    "timeout": "spec.activeDeadlineSeconds",
    "schedulingPolicy": "spec.scheduling",
    "queueName": "spec.scheduling.queue",
    "ttl": "spec.ttlSecondsAfterFinished",
    "shutdownAfterJobFinishes": "spec.ttlSecondsAfterFinished",
    # storage and data
    **dict.fromkeys(("pvc", "claimName", "volume", "persistentVolumeClaimName"), _CLAIM),
    **dict.fromkeys(("s3", "bucket", "uri", "storageUri", "checkpointDir", "checkpoint_dir"), _URI),
    **dict.fromkeys(("data", "dataset", "datasetConfig", "datasets", "initializer", "modelConfig"), _INPUT),
    # programs
    **{name: f"spec.trainer.{name}" for name in ("task", "module", "script", "command", "args", "config", "code")},
    **dict.fromkeys(("run", "entrypoint", "cmd", "program", "main"), _PROGRAM),
    **dict.fromkeys(("setup", "pip", "requirements", "packages", "packages_to_install", "runtimeEnv", "runtimeEnvYAML", "conda"), _SETUP),
    **dict.fromkeys(("workdir", "workingDir", "working_dir"), "spec.trainer.code, or use `muster submit --code FOLDER`"),
    "runtimeRef": "spec.strategy, such as DDP, and spec.trainer.image",
    **dict.fromkeys(("backend", "framework", "mlPolicy"), "spec.strategy, such as DDP or MultiWorkerMirrored"),
    **dict.fromkeys(("hyperparameters", "params"), "your settings into spec.trainer.settings and config"),
    **dict.fromkeys(("batchSize", "batch_size", "globalBatchSize"), "spec.batch.globalSize, the samples of a step over all devices"),
}
"""What to write instead of a field of that name, wherever it is."""


def instead_of(location: tuple[str | int, ...]) -> str | None:
    """What to write instead of the unknown field at `location` in a job. None if no tool has such a field."""
    name = str(location[-1])
    shared = shared_name(name)
    text = WRITE.get(name) or (shared and f"spec.trainer.settings.{shared}")
    role = location[2] if location[:2] == ("spec", "roles") and len(location) > 3 else "worker"
    return text and text.replace("spec.roles.worker", f"spec.roles.{role}")
