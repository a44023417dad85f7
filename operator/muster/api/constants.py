"""Names that others rely on: the API group, labels, annotations, and what a user may not set."""

GROUP = "muster.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingJob"
PLURAL = "trainingjobs"
SHORT_NAME = "tj"
CONTROLLER = f"{GROUP}/operator"
"""The controller that manages a job unless `spec.managedBy` names another."""
ORPHAN_FINALIZER = "orphan"
"""The garbage collector's own, on an object that is deleted without its dependents (metav1.FinalizerOrphanDependents)."""

JOB_NAME_LABEL = f"{GROUP}/job-name"
"""On every child; the operator's watches select by it."""
JOB_UID_LABEL = f"{GROUP}/job-uid"
"""Tells children of a job from those of an earlier job of the same name."""
ROLE_LABEL = f"{GROUP}/role"
INDEX_LABEL = f"{GROUP}/index"
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""The attempt that a pod was made for; the fence between worlds."""
STANDBY_LABEL = f"{GROUP}/standby"
FORM_LABEL = f"{GROUP}/form"
"""A digest of what the pod was made of."""

TRAINER_CONTAINER = "trainer"
"""The container that trains; a user's template reaches it by this name."""

RESERVED_ENV_PREFIXES = ("MUSTER_", "PET_")
RESERVED_ENV_NAMES = frozenset(
    {
        "TF_CONFIG",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    }
)


def is_reserved_env(name: str) -> bool:
    """Whether Muster sets this environment variable itself, so that a user may not."""
    return name in RESERVED_ENV_NAMES or name.startswith(RESERVED_ENV_PREFIXES)
