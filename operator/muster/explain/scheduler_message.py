"""Which reasons in a message of kube-scheduler count. Pure.

The text is that of `FitError` (pkg/scheduler/framework/types.go): `0/3 nodes are available: 1 node(s) had untolerated taint(s), 2
Insufficient cpu. preemption: ...`. Each node has the reason of the first plugin that refused it. Cordons and taints come first. So a node
with another reason would take the pod without that reason, and a tainted node shows nothing: most clusters taint their control plane.
"""

from __future__ import annotations

import re

_AVAILABLE = " nodes are available: "
_BETWEEN = re.compile(r", (?=\d+ )")
_MOST = 16
"""Reasons that are read. The scheduler has fewer, and everyone who may create Events can list thousands."""
_NODES = re.compile(r"0/(\d{1,9})$")
_TAINT = "untolerated taint"
_HEALTH = "untolerated taint {node.kubernetes.io/"
_CORDON = "node(s) were unschedulable"
_DEVICE = re.compile(r"Insufficient ([\w.-]{1,253}/[\w.-]{1,63})")


def decisive(message: str) -> tuple[str, ...]:
    """The message with one reason each, for the reasons that count. The message itself if it does not list reasons.

    - Taints and cordons count if no node has another reason, and cordons before taints.
    - A taint that names a device, such as nvidia.com/gpu, counts together with the lack of that device.
    - Taints of nodes that are not healthy count if at least half of the nodes have one.
    """
    head, separator, rest = message.partition(_AVAILABLE)
    if not separator:
        return (message,)
    listed, _, after = rest.partition(". ")
    more = "" if not after or after.startswith("preemption:") else f". {after}"
    reasons = _counting(_BETWEEN.split(listed.rstrip("."), _MOST)[:_MOST], nodes=_number(_NODES.search(head)))
    return tuple(f"{head}{separator}{reason}{more}" for reason in reasons)


def _counting(reasons: list[str], *, nodes: int) -> list[str]:
    taints = [reason for reason in reasons if _TAINT in reason]
    cordons = [reason for reason in reasons if _CORDON in reason]
    others = [reason for reason in reasons if reason not in (*taints, *cordons)]
    if not others:
        return cordons or taints
    unhealthy = [reason for reason in taints if _HEALTH in reason]
    affected = sum(_number(re.match(r"(\d{1,9}) ", reason)) for reason in unhealthy)
    return [*(unhealthy if 2 * affected >= nodes else ()), *(_with_its_taint(reason, taints) for reason in others)]


def _with_its_taint(reason: str, taints: list[str]) -> str:
    """The lack of a device with the first taint that names the device, its vendor or its kind, such as {sku: gpu}."""
    if (device := _DEVICE.search(reason)) is None:
        return reason
    vendor, _, kind = device[1].lower().partition("/")
    words = {vendor.split(".")[0], *kind.split(".")[-1:]}
    named = (taint for taint in taints if _HEALTH not in taint and words & set(re.findall(r"[a-z0-9]+", taint.partition("{")[2].lower())))
    taint = next(named, None)
    return reason if taint is None else f"{reason}, {taint}"


def _number(match: re.Match[str] | None) -> int:
    return int(match[1]) if match else 0
