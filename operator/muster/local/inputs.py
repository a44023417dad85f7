"""Fetches the inputs of a job before its world starts, into a cache of the user."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from muster.api.job import TrainingJob
from muster.api.status import InputStatus, TrainingJobStatus
from muster.local.errors import InputError, StorageError
from muster.local.files import open_regular
from muster.local.sweep import RUN_MARK
from muster.render.inputs import requests_of
from muster.strategies.registry import is_reserved_env
from muster_contract.codes import ExitCode
from muster_contract.inputs import INPUTS, INPUTS_CACHE, INPUTS_DIR, InputProgress, amount, requests_to_json
from muster_contract.wire import WireError, parse

_LONGEST_LINE = 1 << 16


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The cache that all runs of the user share."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "inputs"


class Fetcher:
    """Runs `python -m muster_trainer.inputs`. The inputs are then in `folder`, by their names."""

    def __init__(
        self, folder: Path, log: Path, mark: str, *, show: Callable[[TrainingJobStatus], None], say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._log = log
        self._mark = mark
        self._show = show
        self._say = say
        self._process: asyncio.subprocess.Process | None = None

    async def fetch(self, job: TrainingJob) -> TrainingJobStatus:
        """The status with the inputs, once all are there or the fetch was stopped. Raises InputError and StorageError."""
        environ = {name: value for name, value in os.environ.items() if not is_reserved_env(name)}
        environ |= {
            INPUTS: requests_to_json(requests_of(job, job.spec.inputs)),
            INPUTS_DIR: str(self._folder),
            INPUTS_CACHE: str(cache_folder(os.environ)),
            RUN_MARK: self._mark,
        }
        command = [sys.executable, "-P", "-m", "muster_trainer.inputs", "--progress"]
        try:
            with os.fdopen(open_regular(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    env=environ,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    limit=_LONGEST_LINE,
                )
        except OSError as error:
            raise StorageError(f"{self._log}: cannot be written: {error.strerror}") from None
        assert self._process.stdout is not None
        states = {each.name: InputProgress(each.name) for each in job.spec.inputs}
        status = job.status
        async for line in self._process.stdout:
            try:
                state = parse(InputProgress, line)
            except WireError:  # a line that a library prints
                continue
            if state.name in states:
                states[state.name] = state
                status = _with(job, states)
                self._show(status)
                if state.phase == "Ready":
                    self._say(f"input {state.name}: {amount(state.bytes)}, revision {state.revision[:12]}")
        code = await self._process.wait()
        if code not in (ExitCode.COMPLETED, ExitCode.PREEMPTED):
            raise InputError(_last_line(self._log) or f"the inputs cannot be fetched; see {self._log}", code)
        return status

    def stop(self) -> None:
        """Ends the fetch. The fetched data stays, and the next run continues from it."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a stopped process handles no SIGTERM


def _with(job: TrainingJob, states: Mapping[str, InputProgress]) -> TrainingJobStatus:
    inputs = tuple(
        InputStatus(
            name=each.name,
            source=each.source,
            phase=states[each.name].phase,
            revision=states[each.name].revision,
            bytes=states[each.name].bytes,
            total_bytes=states[each.name].total_bytes,
        )
        for each in job.spec.inputs
    )
    newest = next((state for state in states.values() if state.phase == "Fetching"), None)
    message = job.status.message
    if newest is not None and newest.total_bytes is not None:
        message = f"input {newest.name}: {amount(newest.bytes)} of {amount(newest.total_bytes)}"
    return replace(job.status, inputs=inputs, message=message)


def _last_line(log: Path) -> str:
    """The error of the fetcher, which is its last line."""
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1].removeprefix("muster: ") if lines else ""
