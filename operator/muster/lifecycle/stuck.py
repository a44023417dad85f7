"""What becomes of a replica that was asked to go and does not? The kubelet of a live node ends it soon after its grace period; only a node
that is dead, frozen or cut off leaves it there.

Its object is then removed by force, as is one that is empty, for which nobody need wait. The processes on such a node may live on where
nobody sees them: the bundled trainer's are fenced off by their attempt, a program of the user's is not, so there the node gets longer to
come back.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.lifecycle.actions import Action, DeleteReplica
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.situation import Situation


def actions(case: Situation) -> tuple[Action, ...]:
    """Removes by force what need not be there, or should have gone long ago."""
    stuck = (view for view in case.observed.everyone if (limit := removed_at(case, view)) and case.now >= limit)
    return tuple(DeleteReplica(name=view.name, uid=view.uid, grace_seconds=0) for view in stuck)


def removed_at(case: Situation, view: ReplicaView) -> datetime | None:
    """When the replica's object is removed by force, if it is still there then. None: it is not being deleted."""
    if view.due is None or view.deleting is None:
        return None
    if view.empty and view.deleting < view.due:
        return view.deleting
    policy, trainer = case.policy, case.spec.trainer
    fenced = trainer.task is not None or trainer.module is not None
    return view.due + timedelta(seconds=policy.stuck_seconds if fenced else policy.stuck_unfenced_seconds)
