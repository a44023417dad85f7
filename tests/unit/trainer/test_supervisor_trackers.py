"""The variables of experiment trackers, and the search for the job's MLflow run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from muster_contract.environment import MLFLOW_RUN_ID, TRACKER_VARIABLES, ReplicaEnvironment
from muster_trainer.supervisor import trackers
from muster_trainer.supervisor.trackers import mlflow_run, tracker_variables


def replica(**changes: Any) -> ReplicaEnvironment:
    values = {
        "job": "team/digits",
        "job_uid": "3f1c-uid",
        "job_created": datetime(2026, 1, 1, tzinfo=UTC),
        "strategy": "DDP",
        "role": "worker",
        "index": 0,
        "attempt": 1,
        "processes": 1,
        "trainer": "{}",
        "pod_name": "digits-worker-0",
        "pod_uid": "p",
        "first_rank": 0,
    }
    return ReplicaEnvironment(**{**values, **changes})


def test_rank_0_has_the_run_of_the_job_and_other_processes_have_their_own() -> None:
    first = tracker_variables(replica(), 0, {})
    assert first == {
        "WANDB_RUN_ID": "3f1c-uid",
        "WANDB_RESUME": "allow",
        "WANDB_NAME": "digits",
        "WANDB_RUN_GROUP": "digits",
        "MLFLOW_RUN_CONTEXT": '{"muster.dev/job-uid": "3f1c-uid", "muster.dev/rank": "0"}',
    }
    assert tracker_variables(replica(attempt=7), 0, {}) == first
    third = tracker_variables(replica(), 3, {})
    assert (third["WANDB_RUN_ID"], third["WANDB_NAME"], third["WANDB_RUN_GROUP"]) == ("3f1c-uid-3", "digits-3", "digits")
    evaluator = tracker_variables(replica(role="evaluator", first_rank=None), 0, {})
    assert evaluator["WANDB_RUN_ID"] == "3f1c-uid-evaluator-0"
    assert json.loads(evaluator["MLFLOW_RUN_CONTEXT"])["muster.dev/rank"] == "evaluator-0"


def test_tensorboard_files_go_to_the_folder_of_the_job() -> None:
    assert tracker_variables(replica(tensorboard_dir=Path("/x/tb")), 0, {})["TENSORBOARD_LOGGING_DIR"] == "/x/tb"


def test_every_variable_is_in_the_reference() -> None:
    names = {*tracker_variables(replica(tensorboard_dir=Path("/x")), 0, {}), MLFLOW_RUN_ID}
    assert names == TRACKER_VARIABLES.keys()


@pytest.mark.parametrize("name", sorted(TRACKER_VARIABLES))
def test_variables_of_the_user_are_not_replaced(name: str) -> None:
    assert name not in tracker_variables(replica(tensorboard_dir=Path("/x")), 0, {name: "mine"})


@pytest.mark.parametrize("name", ["WANDB_RUN_ID", "WANDB_RESUME"])
def test_the_id_of_a_wandb_run_and_its_resumption_are_set_together(name: str) -> None:
    assert not {"WANDB_RUN_ID", "WANDB_RESUME"} & tracker_variables(replica(), 0, {name: "never"}).keys()


@dataclass
class TrackingServer:
    """A tracking server. `replies` are the replies to the requests in turn: a status and a body."""

    url: str = ""
    replies: list[tuple[int, str]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)
    held: threading.Event | None = None


@pytest.fixture
def server() -> Iterator[TrackingServer]:
    state = TrackingServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append((self.path, body, self.headers["Authorization"]))
            if state.held:
                state.held.wait(60)
            status, text = state.replies.pop(0)
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield state
    if state.held:
        state.held.set()
    http.shutdown()
    http.server_close()


EXPERIMENTS = 200, json.dumps({"experiments": [{"experiment_id": "0"}, {"experiment_id": "7"}]})
RUNS = 200, json.dumps({"runs": [{"info": {"run_id": "abc123"}}]})


def test_a_later_attempt_gets_the_run_of_the_first_attempt(server: TrackingServer) -> None:
    server.replies = [EXPERIMENTS, RUNS]
    messages: list[str] = []
    environ = {"MLFLOW_TRACKING_URI": f"{server.url}/", "MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "x"}
    assert mlflow_run(replica(), environ, messages.append) == {"MLFLOW_RUN_ID": "abc123"}
    assert messages == []
    (first, _, login), (second, query, _) = server.requests
    assert (first, second) == ("/api/2.0/mlflow/experiments/search", "/api/2.0/mlflow/runs/search")
    assert login == "Basic bWU6eA=="
    assert query["experiment_ids"] == ["0", "7"]
    assert query["filter"] == "tags.`muster.dev/job-uid` = '3f1c-uid' and tags.`muster.dev/rank` = '0'"


@pytest.mark.parametrize(
    ("changes", "environ"),
    [
        ({"attempt": 0}, {}),
        ({"first_rank": 2}, {}),
        ({"first_rank": None}, {}),
        ({"job_uid": "'"}, {}),
        ({}, {"MLFLOW_RUN_ID": "mine"}),
        ({}, {"MLFLOW_RUN_CONTEXT": "{}"}),
        ({}, {"MLFLOW_TRACKING_URI": "sqlite:///x.db"}),
    ],
)
def test_the_server_gets_no_request_if_no_run_can_exist(server: TrackingServer, changes: dict[str, Any], environ: dict[str, str]) -> None:
    assert mlflow_run(replica(**changes), {"MLFLOW_TRACKING_URI": server.url, **environ}, print) == {}
    assert server.requests == []


def test_a_job_without_a_run_gets_no_variable(server: TrackingServer) -> None:
    server.replies = [EXPERIMENTS, (200, "{}")]
    messages: list[str] = []
    assert mlflow_run(replica(), {"MLFLOW_TRACKING_URI": server.url}, messages.append) == {}
    assert messages == []


@pytest.mark.parametrize(
    "replies",
    [
        [(500, "")],
        [(302, "")],
        [(200, "no JSON")],
        [(200, "[]")],
        [(200, '{"experiments": 3}')],
        [EXPERIMENTS, (200, '{"runs": [{"info": 5}]}')],
    ],
)
def test_an_unexpected_answer_of_a_server_is_logged_in_one_line(server: TrackingServer, replies: list[tuple[int, str]]) -> None:
    server.replies = list(replies)
    messages: list[str] = []
    assert mlflow_run(replica(), {"MLFLOW_TRACKING_URI": server.url}, messages.append) == {}
    [line] = messages
    assert line.startswith("the job's MLflow run cannot be looked up (")


def test_an_invalid_run_id_is_not_used(server: TrackingServer) -> None:
    server.replies = [EXPERIMENTS, (200, json.dumps({"runs": [{"info": {"run_id": "a\nb"}}]}))]
    assert mlflow_run(replica(), {"MLFLOW_TRACKING_URI": server.url}, print) == {}


def test_a_server_that_hangs_delays_the_start_for_a_bounded_time(server: TrackingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.held = threading.Event()
    server.replies = [EXPERIMENTS]
    monkeypatch.setattr(trackers, "SECONDS", 0.2)
    messages: list[str] = []
    assert mlflow_run(replica(), {"MLFLOW_TRACKING_URI": server.url}, messages.append) == {}
    assert len(messages) == 1
