"""Takes over a list of all objects: corrects the caches, and queues every job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from muster.control.cluster import Cluster
from muster.control.job_store import Store
from muster.control.kubernetes_events import event_of_unreadable
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue

log = logging.getLogger("muster.resync")


async def correct_caches(
    cluster: Cluster, store: Store, *, queue: WorkQueue, now: Callable[[], datetime], publish: Callable[[Object], None] = lambda _: None
) -> None:
    """Lists all objects and takes them over. Jobs that lack a running replica come first in the queue. `publish` gets the manifest of an
    Event for each object that cannot be read. Raises ClusterError if the API server does not answer; the caches then stay unchanged."""
    before = store.uids
    listing = await cluster.list_all()
    for each in set(listing.unreadable) - set(store.unreadable):
        log.error("%s %s/%s cannot be read and is ignored: %s", each.kind, each.namespace, each.name, each.reason)
        publish(event_of_unreadable(each, now()))
    store.replace(listing, cached_before=before)
    for key in store.keys_by_need:
        queue.add(key)
