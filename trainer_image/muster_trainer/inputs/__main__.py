"""`python -m muster_trainer.inputs [--progress]`: fetches the inputs in MUSTER_INPUTS, and links them to the folder MUSTER_INPUTS_DIR.

In a pod it reports its progress to the operator. With --progress it prints its progress as JSON objects, one in each line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from muster_contract.codes import ExitCode
from muster_contract.environment import NAMES, ReplicaEnvironment, path_in
from muster_contract.errors import BadConfiguration, TrainerError
from muster_contract.inputs import INPUTS, INPUTS_CACHE, INPUTS_DIR, INPUTS_SECRETS, InputProgress, InputRequest, requests_from_json
from muster_contract.reports import Report
from muster_contract.text import printable
from muster_contract.wire import encode
from muster_trainer.inputs.cache import Entry, open_cache
from muster_trainer.inputs.fetch import STALL_SECONDS, Job, job_of
from muster_trainer.inputs.remote import Listing
from muster_trainer.supervisor.reporting import Reporter, report_of
from muster_trainer.supervisor.termination import termination_of_error, write

AGREE_SECONDS = 15.0
"""How long a replica waits for the operator to name a revision. All replicas then use the same revision."""
REPORT_SECONDS = 2.0
STALL_SECONDS_IN_PODS = 300.0
"""As `STALL_SECONDS`, but longer, because a replica that gives up ends the attempt, and with it the fetches of all other replicas."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
"""Variables that are removed here, because they are meant for the training, which needs no network when it has its inputs."""
_SECRET_BYTES = 64 * 1024


def say(text: str) -> None:
    print(f"muster: {printable(text)}", file=sys.stderr, flush=True)


class Progress:
    """The progress of all inputs, for the operator or for `muster run`."""

    def __init__(self, requests: list[InputRequest], replica: ReplicaEnvironment | None, *, prints: bool) -> None:
        self._states = {request.name: InputProgress(request.name) for request in requests}
        self._prints = prints
        self._report: Report | None = None if replica is None else report_of(replica)
        self._reporter = None if replica is None else Reporter(replica, say, lambda: None)
        self._send()

    def show(self, state: InputProgress) -> None:
        before, self._states[state.name] = self._states[state.name], state
        if state == before:
            return
        if before.phase != state.phase:
            say(f"input {state.name}: {state.phase.lower()}, revision {state.revision or 'unknown'}")
        if self._prints:
            print(json.dumps(encode(state)), flush=True)
        self._send()

    def agreed(self, name: str) -> str:
        """The revision of the input that the operator names. Empty if it names none within AGREE_SECONDS."""
        if self._reporter is None or not self._reporter.is_active:
            return ""
        limit = time.monotonic() + AGREE_SECONDS
        while name not in self._reporter.revisions and time.monotonic() < limit:
            time.sleep(0.05)
        return self._reporter.revisions.get(name, "")

    def finish(self) -> None:
        if self._reporter is not None and self._report is not None:
            self._reporter.finish(self._current(self._report), seconds=REPORT_SECONDS)

    def _send(self) -> None:
        if self._reporter is not None and self._report is not None:
            self._reporter.update(self._current(self._report))

    def _current(self, report: Report) -> Report:
        return replace(report, inputs=tuple(self._states.values()), in_place=False)


def main(environ: Mapping[str, str], arguments: list[str]) -> int:
    """Fetches all inputs, and returns the exit code. Writes a termination message if it fails in a pod."""
    replica: ReplicaEnvironment | None = None
    progress: Progress | None = None
    try:
        if NAMES["job"] in environ:
            replica = ReplicaEnvironment.from_environment(environ)
        requests = requests_from_json(environ.get(INPUTS, ""))
        folder, cache = _path(environ, INPUTS_DIR), open_cache(_path(environ, INPUTS_CACHE))
        progress = Progress(requests, replica, prints="--progress" in arguments)
        for request in requests:  # one after the other, because clients take their credentials from the environment
            variables, stall_seconds = _variables(environ, request.name), STALL_SECONDS if replica is None else STALL_SECONDS_IN_PODS
            job = job_of(request, cache, variables, show=progress.show, say=say, stall_seconds=stall_seconds)
            entry, listing = _fetched(job, progress)
            _link(folder, request.name, _content(entry, job, listing))
    except TrainerError as error:
        return _failed(error, replica, progress, environ)
    except OSError as error:
        return _failed(BadConfiguration(f"inputs cannot be stored: {error}"), replica, progress, environ)
    progress.finish()
    return ExitCode.COMPLETED


def _fetched(job: Job, progress: Progress) -> tuple[Entry, Listing]:
    if cached := job.cached_as_named():
        job.ready(cached[1])
        return cached
    listing = job.resolved(job.request.revision)
    if job.request.revision and listing.revision != job.request.revision:
        say(f"input {job.name}: has changed since the job began: from revision {job.request.revision} to {listing.revision}")
    elif not job.request.revision and not job.remote.fixed and job.remote.has_revisions:
        progress.show(InputProgress(job.name, "Waiting", listing.revision, 0, listing.total))
        agreed = progress.agreed(job.name)
        if agreed and agreed != listing.revision:
            listing = job.resolved(agreed)
    return job.fetch(listing), listing


def _content(entry: Entry, job: Job, listing: Listing) -> Path:
    """The folder for the trainer. Raises BadConfiguration if a link in it points out of the cache, which other pods may write to."""
    path = entry.files / job.remote.folder
    if path.resolve() != entry.root.resolve() / entry.key / "files" / job.remote.folder:
        raise BadConfiguration(f"input {job.name}: {path} is a link out of the cache; remove {entry.folder} from the cache")
    return path


def _link(folder: Path, name: str, target: Path) -> None:
    """Creates the link for the trainer, or replaces an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.new"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(folder / name)


def _variables(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """The variables of the input's Secret."""
    secrets = environ.get(INPUTS_SECRETS)
    folder = Path(secrets, name) if secrets else None
    if folder is None or not folder.is_dir():
        return {}
    files = (path for path in folder.iterdir() if not path.name.startswith("..") and path.is_file())
    return {path.name: path.read_bytes()[:_SECRET_BYTES].decode(errors="replace").strip() for path in files}


def _path(environ: Mapping[str, str], name: str) -> Path:
    if not environ.get(name):
        raise BadConfiguration(f"{name} is not set; the operator and `muster run` set it (docs/reference/environment.md)")
    return Path(environ[name]).absolute()


def _failed(error: TrainerError, replica: ReplicaEnvironment | None, progress: Progress | None, environ: Mapping[str, str]) -> int:
    say(str(error))
    if progress is not None:
        progress.finish()
    if NAMES["job"] in environ:
        termination = termination_of_error(error, replica.attempt if replica else None)
        if problem := write(termination, path_in(environ, "termination_log")):
            say(problem)
    return error.code


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGINT):  # the kernel drops a signal to PID 1 of a container that has no handler for it
        signal.signal(each, lambda *_: os._exit(ExitCode.PREEMPTED))
    for variable in _OFFLINE:
        os.environ.pop(variable, None)
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_SHARED_BLOBS": "1"}
    # Not sys.exit, because that would wait for threads that read from the network.
    os._exit(main(dict(os.environ), sys.argv[1:]))
