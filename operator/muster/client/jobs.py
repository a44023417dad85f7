"""The TrainingJobs of one namespace, with the rights of the user."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

from pydantic import ValidationError

from muster.api.constants import API_VERSION, JOB_NAME_LABEL, JOB_UID_LABEL, KIND, PLURAL
from muster.api.job import TrainingJob
from muster.api.status import FINAL_PHASES, TrainingJobStatus
from muster.client import cuts, errors
from muster.client.connection import Connection
from muster.client.job_table import jobs_in
from muster.explain.states import is_silent, neglected
from muster.kubernetes.answers import parsed
from muster.kubernetes.api_paths import ApiPath, collection
from muster.kubernetes.objects import Object

POLL_SECONDS = 0.5
OUTAGE_SECONDS = 60.0
WAIT_SECONDS = 600.0
MOST_SUSPECTS = 5


class Jobs:
    """The jobs of the connection's namespace."""

    def __init__(self, connection: Connection, *, clock: Callable[[], float] = time.monotonic, poll_seconds: float = POLL_SECONDS) -> None:
        self.connection, self._clock, self._poll_seconds = connection, clock, poll_seconds
        self.namespace = connection.namespace

    async def get(self, name: str, *, bounded: bool = False) -> Object:
        """The job. `bounded`: a spec that is far out of bounds is not read, and a small one that is out of bounds too takes its place.

        Raises NoJobError, which names jobs of similar names.
        """
        try:
            return await (self.connection.get_bounded if bounded else self.connection.get)(self._path(name))
        except errors.NotFoundError as error:
            raise await self._no_job(name) from error

    async def all(self, *, everywhere: bool = False) -> list[Object]:
        """The whole jobs of the namespace, or of all namespaces. They may take much memory."""
        return await self.connection.items(self._folder(everywhere=everywhere))

    async def summaries(self, *, everywhere: bool = False) -> list[Object]:
        """The jobs, with only the fields that have a column in `kubectl get`. Raises TooLargeError if there are too many."""
        kept = cuts.Cuts(lambda job: job)
        return [kept.of(job) async for table in self.connection.tables(self._folder(everywhere=everywhere)) for job in jobs_in(table)]

    async def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Creates the job. With `dry_run`, the API server only checks it."""
        return await self.connection.create(self._folder(), manifest, **({"dryRun": "All"} if dry_run else {}))

    async def patch(self, name: str, body: Object) -> Object:
        try:
            return await self.connection.patch(self._path(name), body)
        except errors.NotFoundError as error:
            raise await self._no_job(name) from error

    async def suspend(self, name: str, *, suspend: bool) -> Object:
        """Suspends the job, or lets it go on. Raises RefusedError if it has ended."""
        _refuse_ended(await self.get(name))
        return await self.patch(name, {"spec": {"suspend": suspend}})

    async def scale(self, name: str, *, role: str, replicas: int) -> Object:
        """Changes the number of replicas of a role that the job has. A job that is not elastic is suspended meanwhile.

        Raises RefusedError, also if the job has ended, and ClientError if the job does not stop in time.
        """
        job = await self.get(name)
        _refuse_ended(job)
        roles = sorted({*(job["spec"].get("roles") or {}), "worker"})
        if role not in roles:
            raise errors.RefusedError(f"{name} has no role {role}: its roles are {', '.join(roles)}")
        change = {"roles": {role: {"replicas": replicas}}}
        if job["spec"].get("elastic") or job["spec"].get("suspend"):
            return await self.patch(name, {"spec": change})
        await self.patch(name, {"spec": {**change, "suspend": True}})
        await self._wait_suspended(name)
        return await self.suspend(name, suspend=False)

    async def delete(self, name: str, *, uid: str | None = None) -> None:
        options: Object = {"propagationPolicy": "Background", **({"preconditions": {"uid": uid}} if uid else {})}
        try:
            await self.connection.delete(self._path(name), options)
        except errors.NotFoundError as error:
            raise await self._no_job(name) from error

    async def restart(self, name: str) -> Object:
        """Stops the job so that it saves, and continues it in new pods. A failed job is created again, with the same checkpoints.

        Raises RefusedError for a job that has succeeded, and ClientError if the job does not stop in time.
        """
        job = await self.get(name)
        phase = (job.get("status") or {}).get("phase")
        if phase == "Succeeded":
            raise errors.RefusedError(f"{name} has succeeded: delete it and its checkpoints, or submit it under another name")
        if phase == "Failed":
            return await self._make_anew(job)
        await self.suspend(name, suspend=True)
        await self._wait_suspended(name)
        return await self.suspend(name, suspend=False)

    async def _make_anew(self, job: Object) -> Object:
        """Deletes the job and creates it again. The ConfigMap of `submit --code` changes its owner, so that it is not deleted."""
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        manifest = manifest_of(job)
        with suppress(errors.ConflictError):  # the expected answer: admission accepts the job, and its name is in use
            await self.create(manifest, dry_run=True)
        code = await self._own_code(job)
        if code is not None:
            await self.connection.patch(code, {"metadata": {"ownerReferences": None}})
        await self.delete(name, uid=uid)
        created = await self._create_after_deletion(manifest, uid=uid)
        if code is not None:
            owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": created["metadata"]["uid"]}
            await self.connection.patch(code, {"metadata": {"ownerReferences": [owner]}})
        return created

    async def _own_code(self, job: Object) -> ApiPath | None:
        """The path of the ConfigMap of spec.trainer.code, if the job owns it."""
        name = ((job["spec"]["trainer"].get("code") or {}).get("configMap") or {}).get("name")
        if name is None:
            return None
        path = self.connection.path("v1", "configmaps", name)
        try:
            owners = (await self.connection.get(path))["metadata"].get("ownerReferences") or ()
        except errors.NotFoundError:
            return None
        return path if any(owner.get("uid") == job["metadata"]["uid"] for owner in owners) else None

    async def _create_after_deletion(self, manifest: Object, *, uid: str) -> Object:
        """Retries while the API server does not answer, because after the deletion the job exists nowhere else."""
        began = self._clock()
        while True:
            try:
                await self._wait_deleted(manifest["metadata"]["name"], uid=uid)
                return await self.create(manifest)
            except errors.NoClusterError:
                if self._clock() - began > WAIT_SECONDS:
                    raise
                await asyncio.sleep(self._poll_seconds)

    async def pods(self, job: Object) -> list[Object]:
        """The pods of the job, and of no earlier job of its name, by name, as far as `cuts.pod` keeps them."""
        selector = f"{JOB_NAME_LABEL}={job['metadata']['name']},{JOB_UID_LABEL}={job['metadata']['uid']}"
        pods = await self.connection.items(self.connection.path("v1", "pods"), cuts.pod, labelSelector=selector)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    async def neglects(self, jobs: Sequence[Object], *, now: datetime) -> list[str]:
        """A sentence about each of these jobs that no operator works on. Reads the pods of the first jobs of the namespace only, and shows
        nothing to users who may not read pods."""
        sentences = []
        suspects = (job for job in jobs if job["metadata"]["namespace"] == self.namespace and is_silent(job, now))
        for job in islice(suspects, MOST_SUSPECTS):
            with suppress(errors.ClientError):
                name = job["metadata"]["name"]
                job = await self.get(name)  # a summary has no world
                if neglect := neglected(job, await self.pods(job), now):
                    sentences.append(f"{name}: {neglect}. See muster explain {name}")
        return sentences

    async def changes(self, name: str) -> AsyncGenerator[Object | None, None]:
        """Yields the job now and after each change, and None once it is deleted.

        Goes on after a watch has ended, and while the API server does not answer, for OUTAGE_SECONDS.
        """
        silent_since: float | None = None
        while True:
            try:
                job = await self.connection.get(self._path(name))
                silent_since = None
                yield job
                async for change in self._watch(name, job["metadata"]["resourceVersion"]):
                    yield change
                    if change is None:
                        return
            except errors.NotFoundError:
                yield None
                return
            except errors.NoClusterError:
                now = self._clock()
                silent_since = now if silent_since is None else silent_since
                if now - silent_since > OUTAGE_SECONDS:
                    raise
                await asyncio.sleep(self._poll_seconds)

    async def _watch(self, name: str, version: str) -> AsyncIterator[Object | None]:
        query = {"watch": "true", "fieldSelector": f"metadata.name={name}", "resourceVersion": version, "timeoutSeconds": "300"}
        async for line in self.connection.stream(self._folder(), **query):
            event = await parsed(line)
            if event["type"] == "ERROR":
                return
            yield None if event["type"] == "DELETED" else event["object"]

    async def _wait_suspended(self, name: str) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                async for job in self.changes(name):
                    if job is None:
                        raise errors.NoJobError(f"{name} was deleted")
                    phase = (job.get("status") or {}).get("phase")
                    is_current = (job.get("status") or {}).get("observedGeneration") == job["metadata"].get("generation")
                    if phase in FINAL_PHASES or (phase == "Suspended" and is_current):
                        return
        except TimeoutError:
            raise errors.ClientError(
                f"{name} has not stopped after {WAIT_SECONDS:.0f} s: see muster explain {name}, then muster resume {name}"
            ) from None

    async def _wait_deleted(self, name: str, *, uid: str) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    job = await self.connection.get(self._path(name))
                    if job["metadata"]["uid"] != uid:
                        raise errors.ConflictError(f"another job {name} exists by now")
                    await asyncio.sleep(self._poll_seconds)
        except errors.NotFoundError:
            return
        except TimeoutError:
            message = f"{name} is not gone after {WAIT_SECONDS:.0f} s: a finalizer keeps it; see muster explain {name}"
            raise errors.ClientError(message) from None

    async def _no_job(self, name: str) -> errors.NoJobError:
        try:
            names = [job["metadata"]["name"] for job in await self.summaries()]
        except errors.TooLargeError:
            return errors.NoJobError(f"there is no job {name} in namespace {self.namespace}")
        near = difflib.get_close_matches(name, names, 3, 0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "" if names else "; there are no jobs in it, choose another with -n"
        return errors.NoJobError(f"there is no job {name} in namespace {self.namespace}{hint}")

    def _folder(self, *, everywhere: bool = False) -> ApiPath:
        return collection(API_VERSION, PLURAL) if everywhere else self.connection.path(API_VERSION, PLURAL)

    def _path(self, name: str) -> ApiPath:
        return self.connection.path(API_VERSION, PLURAL, name)


def _refuse_ended(job: Object) -> None:
    phase = (job.get("status") or {}).get("phase")
    if phase in FINAL_PHASES:
        raise errors.RefusedError(errors.ended(job["metadata"]["name"], phase))


def manifest_of(job: Object) -> Object:
    """The job as a user would apply it."""
    metadata = {field: job["metadata"][field] for field in ("name", "namespace", "labels", "annotations") if field in job["metadata"]}
    return {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": metadata, "spec": {**job["spec"], "suspend": False}}


def typed(document: Object) -> TrainingJob:
    """The job of the API server. Raises ClientError if this version cannot read it."""
    try:
        job = TrainingJob.model_validate({**document, "status": {}}, by_alias=True, by_name=False)
        return job.with_status(TrainingJobStatus.from_wire(document.get("status") or {}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise errors.ClientError(f"the job cannot be shown: {field}: {first['msg']}; is the operator newer than this command?") from error
