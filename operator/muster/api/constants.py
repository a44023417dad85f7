"""Names of the API: the API group, labels, annotations, and reserved names."""

from muster_contract.environment import PREFIX

GROUP = "muster.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingJob"
PLURAL = "trainingjobs"
SHORT_NAME = "tj"
PRESET_KIND = "TrainingPreset"
PRESET_PLURAL = "trainingpresets"
PRESET_SHORT_NAME = "tpreset"
CONTROLLER = f"{GROUP}/operator"
"""The controller that manages a job unless `spec.managedBy` names another."""
IMAGE = r"[!-~]+"
"""The name of a container image, as a regular expression."""
ORPHAN_FINALIZER = "orphan"
"""The garbage collector's own, on an object that is deleted without its dependents (metav1.FinalizerOrphanDependents)."""

JOB_NAME_LABEL = f"{GROUP}/job-name"
"""The label on every child. The operator's watches select objects by it."""
JOB_UID_LABEL = f"{GROUP}/job-uid"
"""Distinguishes the children of a job from those of an earlier job of the same name."""
ROLE_LABEL = f"{GROUP}/role"
INDEX_LABEL = f"{GROUP}/index"
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""The attempt that a pod was created for."""
STANDBY_LABEL = f"{GROUP}/standby"
EXCLUDED_NODES_ANNOTATION = f"{GROUP}/excluded-nodes"
"""The nodes that a pod may not go to, because pods on them do not answer. The user's template cannot set it."""
FORM_LABEL = f"{GROUP}/form"
"""The digest of what the pod was rendered from (`render.form`)."""

TRAINER_CONTAINER = "trainer"
"""The name of the training container, also in a user's template."""

RESERVED_ENV_PREFIXES = (PREFIX, "PET_")
"""Environment variables that a user may not set. Each strategy reserves further names."""
