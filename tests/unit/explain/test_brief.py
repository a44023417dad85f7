"""The cause of a wait in one short sentence. It does not change while the cause is the same."""

from __future__ import annotations

import sys

import pytest

from muster.explain.brief import LONGEST, brief
from muster.explain.evidence import Source

NODES = "0/4 nodes are available: "
END = ". preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
S, C, R = Source.SCHEDULING, Source.STARTING, Source.REFUSED
PULL = 'failed to pull and unpack image "own:1": '
REFUSED = 'pods "digits-worker-0" is forbidden: '

TABLE: list[tuple[Source, str, str, str]] = [
    (S, "Unschedulable", f"{NODES}4 Insufficient nvidia.com/gpu{END}", "not enough nvidia.com/gpu is free"),
    (S, "Unschedulable", f"{NODES}4 Insufficient cpu{END}", "no node has enough free CPU for a pod"),
    (S, "Unschedulable", f"{NODES}4 Insufficient memory{END}", "no node has enough free memory for a pod"),
    (
        S,
        "Unschedulable",
        f"{NODES}4 node(s) had untolerated taint {{team: other}}{END}",
        "the nodes are tainted (team: other), and the pods do not tolerate it",
    ),
    (
        S,
        "Unschedulable",
        f"{NODES}4 node(s) didn't match Pod's node affinity/selector{END}",
        "no free node has the labels that the pods ask for",
    ),
    (S, "Unschedulable", f"{NODES}pod has unbound immediate PersistentVolumeClaims{END}", "the claim has no volume yet"),
    (
        S,
        "Unschedulable",
        f'{NODES}persistentvolumeclaim "ckpt" not found{END}',
        "the PersistentVolumeClaim ckpt does not exist in this namespace",
    ),
    (
        S,
        "SchedulingGated",
        "Scheduling is blocked due to non-empty scheduling gates",
        "the pods wait for a queue or another controller: they have scheduling gates",
    ),
    (S, "Unschedulable", "no nodes available to schedule pods", "the cluster has no nodes"),
    (C, "ErrImagePull", f"{PULL}own:1: not found", "the image does not exist: own:1"),
    (C, "ImagePullBackOff", 'Back-off pulling image "own:1"', "the image cannot be pulled: own:1"),
    (
        C,
        "ErrImagePull",
        f"{PULL}failed to authorize: 401 Unauthorized",
        "the registry does not let the nodes pull the image, or the image does not exist there: own:1",
    ),
    (C, "InvalidImageName", 'Failed to apply default image tag "a b": invalid reference format', "the image name is not valid"),
    (C, "CreateContainerConfigError", 'secret "s3" not found', "the Secret s3 does not exist"),
    (C, "CreateContainerConfigError", 'configmap "code" not found', "the ConfigMap code does not exist"),
    (
        C,
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root",
        "the image runs as root, and the pod forbids that (runAsNonRoot)",
    ),
    (C, "RunContainerError", 'exec: "trane": executable file not found in $PATH', "the program to start is not in the image"),
    (
        R,
        "ReplicasRefused",
        f"{REFUSED}exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2",
        "the quota team of the namespace is used up: a pod needs pods=1; pods=2 of pods=2 are in use",
    ),
    (
        R,
        "ReplicasRefused",
        f'{REFUSED}error looking up service account team/absent: serviceaccount "absent" not found',
        "the service account team/absent does not exist",
    ),
    (S, "Unschedulable", f"{NODES}something new{END}", ""),
    (C, "SomethingNew", "of a later kubelet", ""),
    (R, "ReplicasRefused", "a pod digits-worker-0 exists and is not a replica", ""),
]


@pytest.mark.parametrize(("source", "reason", "message", "sentence"), TABLE, ids=[f"{row[1]}-{row[3][:40]}" for row in TABLE])
def test_a_message_of_the_cluster_becomes_a_short_sentence(source: Source, reason: str, message: str, sentence: str) -> None:
    assert brief(source, reason, message) == sentence


def test_the_sentence_does_not_change_while_the_cause_is_the_same() -> None:
    counts = {brief(S, "Unschedulable", f"0/{nodes} nodes are available: {nodes} Insufficient nvidia.com/gpu.") for nodes in range(1, 9)}
    assert len(counts) == 1
    error = f"{PULL}own:1: not found"
    pull = brief(C, "ErrImagePull", f"rpc error: code = NotFound desc = {error}")
    assert pull == brief(C, "ImagePullBackOff", f'Back-off pulling image "own:1": ErrImagePull: {error}')
    names = {
        brief(
            R,
            "ReplicasRefused",
            f'pods "digits-worker-{index}" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2',
        )
        for index in range(4)
    }
    assert len(names) == 1


def test_a_hostile_message_becomes_one_printable_line() -> None:
    message = 'image "' + "\x1b[2J\n" * 50 + "untolerated taint" * 10_000 + '" not found'
    sentence = brief(C, "ErrImagePull", message)
    assert sentence.isprintable()
    assert len(sentence) <= 600


def test_a_long_message_is_not_kept_in_memory() -> None:
    message = "Failed to apply default image tag " + "a" * LONGEST
    references = sys.getrefcount(message)
    brief(C, "InvalidImageName", message)
    assert sys.getrefcount(message) == references
