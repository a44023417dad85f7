"""Muster runs distributed training jobs on Kubernetes and on a laptop, and gets them finished.

The names of the Python client (docs/client.md) are imported when they are first used, so `import muster` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.api.job import Metadata as Metadata
    from muster.api.job import TrainingJob as TrainingJob
    from muster.api.problems import InvalidJobError as InvalidJobError
    from muster.api.spec import Batch as Batch
    from muster.api.spec import Checkpoint as Checkpoint
    from muster.api.spec import Elastic as Elastic
    from muster.api.spec import Input as Input
    from muster.api.spec import MeshOptions as MeshOptions
    from muster.api.spec import Options as Options
    from muster.api.spec import PersistentVolumeClaim as PersistentVolumeClaim
    from muster.api.spec import PipelineOptions as PipelineOptions
    from muster.api.spec import Recovery as Recovery
    from muster.api.spec import Resources as Resources
    from muster.api.spec import Role as Role
    from muster.api.spec import Scheduling as Scheduling
    from muster.api.spec import SecretReference as SecretReference
    from muster.api.spec import Settings as Settings
    from muster.api.spec import Storage as Storage
    from muster.api.spec import Trainer as Trainer
    from muster.api.spec import TrainingJobSpec as TrainingJobSpec
    from muster.api.status import Phase as Phase
    from muster.api.status import TrainingJobStatus as TrainingJobStatus
    from muster.client.async_client import AsyncClient as AsyncClient
    from muster.client.async_job import AsyncJob as AsyncJob
    from muster.client.errors import ClientError as ClientError
    from muster.client.errors import ConflictError as ConflictError
    from muster.client.errors import JobFailedError as JobFailedError
    from muster.client.errors import JobStoppedError as JobStoppedError
    from muster.client.errors import NoClusterError as NoClusterError
    from muster.client.errors import NoJobError as NoJobError
    from muster.client.errors import NoRightsError as NoRightsError
    from muster.client.errors import NotInstalledError as NotInstalledError
    from muster.client.errors import OldDefinitionError as OldDefinitionError
    from muster.client.errors import RefusedError as RefusedError
    from muster.client.errors import WaitTimeoutError as WaitTimeoutError
    from muster.client.job_input import job as job
    from muster.client.notebook import Report as Report
    from muster.client.progress import Progress as Progress
    from muster.client.sync_client import Client as Client
    from muster.client.sync_client import Job as Job

_MODULES = {
    "muster.api.job": ("Metadata", "TrainingJob"),
    "muster.api.problems": ("InvalidJobError",),
    "muster.api.spec": (
        "Batch",
        "Checkpoint",
        "Elastic",
        "Input",
        "MeshOptions",
        "Options",
        "PersistentVolumeClaim",
        "PipelineOptions",
        "Recovery",
        "Resources",
        "Role",
        "Scheduling",
        "SecretReference",
        "Settings",
        "Storage",
        "Trainer",
        "TrainingJobSpec",
    ),
    "muster.api.status": ("Phase", "TrainingJobStatus"),
    "muster.client.async_client": ("AsyncClient",),
    "muster.client.async_job": ("AsyncJob",),
    "muster.client.errors": (
        "ClientError",
        "ConflictError",
        "JobFailedError",
        "JobStoppedError",
        "NoClusterError",
        "NoJobError",
        "NoRightsError",
        "NotInstalledError",
        "OldDefinitionError",
        "RefusedError",
        "WaitTimeoutError",
    ),
    "muster.client.job_input": ("job",),
    "muster.client.notebook": ("Report",),
    "muster.client.progress": ("Progress",),
    "muster.client.sync_client": ("Client", "Job"),
}
"""The public names, by the module that defines them. The imports above are the same for type checkers; a test compares them."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
