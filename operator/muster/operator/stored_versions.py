"""Has the API server store all jobs and presets in the newest version of the API, so that a later release can remove an older one.

The API server converts an object when it is written. `status.storedVersions` of a definition names all versions in which objects may be
stored. The API server refuses a definition without one of them, and removes none itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from muster.api.constants import API_VERSION, GROUP, PLURAL, PRESET_PLURAL, VERSION
from muster.kubernetes.api_paths import ApiPath, collection, member
from muster.kubernetes.errors import ClusterError, ConflictError, ExpiredError, NotFoundError, UnavailableError
from muster.operator.gateway import Gateway

RETRY_SECONDS = 60.0
_WRITTEN = {PLURAL: "/status", PRESET_PLURAL: ""}
"""The part of an object that the operator may write. Each write stores the whole object."""

log = logging.getLogger("muster.stored-versions")


async def migrate(gateway: Gateway, *, retry_seconds: float = RETRY_SECONDS) -> None:
    """Migrates the objects of both definitions that have more than one stored version. Returns when that is done, or refused."""
    for plural in _WRITTEN:
        while True:
            try:
                await _migrate(gateway, plural)
                break
            except (ConflictError, ExpiredError, UnavailableError) as error:
                log.warning("the stored %s are migrated to %s later: %s", plural, VERSION, error)
                await asyncio.sleep(retry_seconds)
            except ClusterError as error:
                log.warning("the stored %s are not migrated to %s: %s; docs/install.md says what to do", plural, VERSION, error)
                break


async def _migrate(gateway: Gateway, plural: str) -> None:
    path = member(collection("apiextensions.k8s.io/v1", "customresourcedefinitions"), f"{plural}.{GROUP}")
    definition = await gateway.request("GET", path)
    is_stored = any(each["name"] == VERSION and each["storage"] for each in definition["spec"]["versions"])
    stored = definition["status"]["storedVersions"]
    if not is_stored or stored == [VERSION]:  # the definition may be of another release than the operator
        return
    objects = await gateway.paths(API_VERSION, plural)
    for each in objects:
        with suppress(NotFoundError):
            await gateway.patch(ApiPath(each + _WRITTEN[plural]), {})
    unchanged = {"resourceVersion": definition["metadata"]["resourceVersion"]}
    await gateway.patch(ApiPath(f"{path}/status"), {"metadata": unchanged, "status": {"storedVersions": [VERSION]}})
    log.info("%d %s are stored in %s, and none in %s", len(objects), plural, VERSION, ", ".join(sorted({*stored} - {VERSION})))
