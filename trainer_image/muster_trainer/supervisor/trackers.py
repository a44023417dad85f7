"""Variables for the user's own programs, by which experiment trackers use one run for all attempts of a job.

Variables that the user has set do not change. MLflow chooses the id of a run itself. So Muster sets a variable that makes MLflow tag the
run with the job. In later attempts it looks up the run with that tag on the tracking server. The look-up is two short requests. If it
fails, the log has a line.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPException
from threading import Thread
from typing import Any
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from muster_contract.environment import (
    MLFLOW_RUN_CONTEXT,
    MLFLOW_RUN_ID,
    TENSORBOARD_LOGGING_DIR,
    WANDB_NAME,
    WANDB_RESUME,
    WANDB_RUN_GROUP,
    WANDB_RUN_ID,
    ReplicaEnvironment,
)

UID_TAG, RANK_TAG = "muster.dev/job-uid", "muster.dev/rank"
SECONDS = 5.0  # the time limit for the look-up
_MOST_BYTES = 4 << 20
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_REASON = 200


def tracker_variables(replica: ReplicaEnvironment, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the process with this rank, without those that the user has set. `environ` is the environment of the process.

    Rank 0 writes to the job's run. Every other process has its own names, in case it logs too.
    """
    name = replica.job.rpartition("/")[2]
    ranked = replica.first_rank is not None
    suffix = "" if ranked and rank == 0 else f"-{rank}" if ranked else f"-{replica.role}-{rank}"
    values = {WANDB_NAME: name + suffix, WANDB_RUN_GROUP: name}
    if WANDB_RUN_ID not in environ and WANDB_RESUME not in environ:
        values |= {WANDB_RUN_ID: replica.job_uid + suffix, WANDB_RESUME: "allow"}
    values[MLFLOW_RUN_CONTEXT] = json.dumps({UID_TAG: replica.job_uid, RANK_TAG: suffix.removeprefix("-") or "0"})
    if replica.tensorboard_dir is not None:
        values[TENSORBOARD_LOGGING_DIR] = str(replica.tensorboard_dir)
    return {name: value for name, value in values.items() if name not in environ}


def mlflow_run(replica: ReplicaEnvironment, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, str]:
    """The variable with the run that an earlier attempt of the job has created on the tracking server. Empty if there is none."""
    address = environ.get("MLFLOW_TRACKING_URI", "")
    looks_up = replica.attempt > 0 and replica.first_rank == 0 and address.startswith(("http://", "https://"))
    if not looks_up or MLFLOW_RUN_ID in environ or MLFLOW_RUN_CONTEXT in environ or not _ID.fullmatch(replica.job_uid):
        return {}
    runs: list[str] = []
    problems: list[str] = []

    def search() -> None:
        try:
            runs.extend(_runs(address.rstrip("/"), environ, replica.job_uid))
        except (OSError, HTTPException, ValueError, TypeError, LookupError, AttributeError) as error:
            problems.append(f"{type(error).__name__}: {error}"[:_LONGEST_REASON])

    thread = Thread(target=search, name="mlflow", daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        problems = [f"no answer within {SECONDS:g} s"]
    elif runs:
        return {MLFLOW_RUN_ID: runs[0]}
    if problems:
        say(f"the job's MLflow run cannot be looked up ({problems[0]}); the program may begin another run")
    return {}


def _runs(address: str, environ: Mapping[str, str], uid: str) -> list[str]:
    """The ids of the runs that rank 0 of the job has created, oldest first.

    Source: `experiments/search` and `runs/search` in the MLflow REST API.
    """
    experiments = _post(f"{address}/api/2.0/mlflow/experiments/search", environ, {"max_results": 1000}).get("experiments", [])
    query = {
        "experiment_ids": [str(experiment["experiment_id"]) for experiment in experiments],
        "filter": f"tags.`{UID_TAG}` = '{uid}' and tags.`{RANK_TAG}` = '0'",
        "order_by": ["attributes.start_time ASC"],
        "max_results": 1,
    }
    runs = _post(f"{address}/api/2.0/mlflow/runs/search", environ, query).get("runs", [])
    return [run_id for run in runs if _ID.fullmatch(run_id := str(run["info"]["run_id"]))]


def _post(url: str, environ: Mapping[str, str], content: Mapping[str, Any]) -> dict[str, Any]:
    """Posts a request and returns the answer. Raises OSError, HTTPException or ValueError."""
    headers = {"Content-Type": "application/json"}
    if token := environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    elif user := environ.get("MLFLOW_TRACKING_USERNAME"):
        login = f"{user}:{environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    opener = build_opener(_NoRedirect, HTTPSHandler(context=_context(environ)))
    with opener.open(Request(url, json.dumps(content).encode(), headers), timeout=SECONDS) as reply:
        parsed = json.loads(reply.read(_MOST_BYTES))
    if not isinstance(parsed, dict):
        raise ValueError("the tracking server did not answer with a JSON object")
    return parsed


class _NoRedirect(HTTPRedirectHandler):
    """Does not follow redirects, because another host must not get the credentials."""

    def redirect_request(self, *_: object) -> None:
        return None


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None)
    if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
