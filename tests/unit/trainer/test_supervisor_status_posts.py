"""Status posts over HTTP, as Hugging Face transformers sends them to Kubeflow Trainer. A hostile client gets an answer and nothing else."""

from __future__ import annotations

import json
import socket
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from muster_contract.environment import STATUS_CA_CERT, STATUS_TOKEN, STATUS_URL
from muster_contract.events import Evaluation, PhaseEvent, Step, decode_event
from muster_contract.run_state import RunState, apply
from muster_trainer.supervisor import listener as listening
from muster_trainer.supervisor.event_reader import Line
from muster_trainer.supervisor.listener import Connection, Listener
from muster_trainer.supervisor.status_posts import LONGEST_BODY, LONGEST_HEAD, PATH, Answer, Request, StatusPosts, status_variables
from tests.support.waiting import wait_until

TOKEN = b"a-token"
BEGIN = {"progressPercentage": 0, "metrics": [{"name": "total_steps", "value": "40"}]}
END = {"train_runtime": 20.5, "train_steps_per_second": 1.951, "epoch": 4.0, "loss": 0.25}


def metrics(**figures: object) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in figures.items()]


def request(
    body: bytes = b'{"trainerStatus": {}}', *, line: bytes = b"POST " + PATH.encode() + b" HTTP/1.1", **changed: bytes | None
) -> bytes:
    """A request; a header that is None is left out."""
    headers = {b"authorization": b"Bearer " + TOKEN, b"content-length": str(len(body)).encode(), b"host": b"127.0.0.1"}
    headers |= {name.replace("_", "-").encode(): value for name, value in changed.items()}  # type: ignore[misc]
    lines = [line, *(name + b": " + value for name, value in headers.items() if value is not None)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answer_to(received: bytes, *, chunk: int = 1 << 20) -> Answer | None:
    taken = Request(TOKEN)
    for start in range(0, len(received), chunk):
        if answer := taken.take(received[start : start + chunk]):
            return answer
    return None


def documents(posts: StatusPosts, status: Mapping[str, Any], now: float = 0.0) -> list[Any]:
    return [decode_event(json.loads(line)) for line in posts.lines(status, now).splitlines()]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_a_request_in_chunks_of_any_size_is_read(chunk: int) -> None:
    answer = answer_to(request(b'{"trainerStatus": {"progressPercentage": 4}}'), chunk=chunk)
    assert answer is not None
    assert (answer.code, answer.status) == (HTTPStatus.OK, {"progressPercentage": 4})


@pytest.mark.parametrize(
    ("received", "code"),
    [
        pytest.param(request(authorization=None), 401, id="no token"),
        pytest.param(request(authorization=b"Bearer wrong"), 401, id="a wrong token"),
        pytest.param(request(authorization=b"Basic " + TOKEN), 401, id="another scheme"),
        pytest.param(request(authorization=b"Bearer \xff\xfe"), 401, id="a token that is no text"),
        pytest.param(request(line=b"GET " + PATH.encode() + b" HTTP/1.1"), 405, id="another method"),
        pytest.param(request(line=b"POST / HTTP/1.1"), 404, id="another path"),
        pytest.param(request(content_length=None), 411, id="no length"),
        pytest.param(request(content_length=b"-1"), 411, id="a negative length"),
        pytest.param(request(content_length=b"9" * 5000), 411, id="a long length"),
        pytest.param(request(transfer_encoding=b"chunked"), 411, id="chunks"),
        pytest.param(request(content_length=str(LONGEST_BODY + 1).encode()), 413, id="a long body"),
        pytest.param(request(content_length=b"1\r\ncontent-length: 2"), 400, id="two lengths"),
        pytest.param(request(host=b"x\r\n folded: y"), 400, id="a folded header"),
        pytest.param(request(host=b"x\r\nno colon"), 400, id="a header without a colon"),
        pytest.param(b"POST / HTTP/1.1\r\n" + b"a" * (LONGEST_HEAD + 1), 431, id="long headers"),
        pytest.param(request(b"not json"), 400, id="no JSON"),
        pytest.param(request(b"[]"), 400, id="no object"),
        pytest.param(request(b'{"trainerStatus": []}'), 400, id="no status"),
        pytest.param(request(b'{"trainerStatus": {}, "a": ' + b"[" * 5000 + b"]" * 5000 + b"}"), 400, id="a deep object"),
        pytest.param(request(b'{"trainerStatus": {"a": ' + b"1" * 6000 + b"}}"), 400, id="a long number"),
        pytest.param(request(b"\xff\xfe{}"), 400, id="no UTF-8"),
    ],
)
def test_an_invalid_request_gets_an_error_with_a_message(received: bytes, code: int) -> None:
    answer = answer_to(received)
    assert answer is not None
    assert (answer.code, answer.status) == (code, None)
    head, _, body = answer.to_bytes().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % code)
    assert json.loads(body)["message"]


def test_posts_become_the_events_that_the_library_sends() -> None:
    posts = StatusPosts()
    assert [type(event) for event in documents(posts, BEGIN)] == [PhaseEvent]
    figures = metrics(loss=0.5, grad_norm=1.5, current_step=20, current_epoch=2.0, learning_rate="nan")
    step, evaluation = documents(posts, {"progressPercentage": 50, "metrics": figures})
    assert isinstance(step, Step)
    assert (step.step, step.total_steps, step.epoch, step.loss) == (20, 40, 2, "0.5")
    assert isinstance(evaluation, Evaluation)
    assert (evaluation.step, evaluation.metrics) == (20, {"grad_norm": 1.5})


def test_the_remaining_time_is_computed_from_posts_after_the_first_estimate() -> None:
    posts = StatusPosts()
    documents(posts, BEGIN)
    estimates = []
    for now, step in ((105.0, 20), (110.0, 30), (115.0, 40)):
        status = {"estimatedRemainingSeconds": 3, "metrics": metrics(current_step=step)}
        estimates += [event.remaining_seconds for event in documents(posts, status, now) if isinstance(event, Step)]
    assert estimates == [3.0, 5.0, 0.0]


@pytest.mark.parametrize(
    ("before", "end", "step"),
    [
        pytest.param({}, END, 40, id="a short training without a post between"),
        pytest.param({}, {**END, "train_steps_per_second": 1.0}, None, id="stopped early"),
        pytest.param({"current_step": 20, "current_epoch": 2.0}, {**END, "train_steps_per_second": 1.0}, 40, id="resumed in the middle"),
        pytest.param(
            {"current_step": 20, "current_epoch": 2.0},
            {**END, "train_steps_per_second": 1.0, "epoch": 3.5},
            None,
            id="resumed and stopped early",
        ),
        pytest.param({}, {"loss": 0.25}, None, id="without figures"),
        pytest.param({}, {**END, "train_runtime": "nan"}, None, id="with a damaged figure"),
    ],
)
def test_the_last_post_counts_as_all_steps_only_if_its_figures_show_it(
    before: dict[str, object], end: dict[str, object], step: int | None
) -> None:
    posts = StatusPosts()
    documents(posts, BEGIN)
    if before:
        documents(posts, {"progressPercentage": 50, "metrics": metrics(**before)})
    events = documents(posts, {"progressPercentage": 100, "metrics": metrics(**end)})
    assert [event.step for event in events if isinstance(event, Step)] == ([step] if step else [])


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"metrics": None},
        {"metrics": {"current_step": 3}},
        {"metrics": [None, 3, "x", [], {}, {"name": 3, "value": "1"}, {"name": "current_step"}]},
        {"metrics": metrics(current_step=-1)},
        {"metrics": metrics(current_step="nan")},
        {"metrics": metrics(current_step="1e400", total_steps="-inf")},
        {"metrics": metrics(current_step=1.5)},
        {"metrics": metrics(current_step=10**20)},
        {"metrics": metrics(current_step="1" * 5000)},
        {"metrics": [{"name": "current_step", "value": True}], "progressPercentage": [100]},
        {"progressPercentage": 100},
        {"progressPercentage": "100", "metrics": metrics(total_steps=40)},
    ],
)
def test_a_status_without_a_step_shows_no_step(status: Mapping[str, Any]) -> None:
    assert [type(event) for event in documents(StatusPosts(), status)] == [PhaseEvent]


def test_a_step_without_a_loss_keeps_the_newest_loss() -> None:
    state = apply(apply(RunState(), Step(step=1, loss="0.5")), Step(step=2))
    assert state.progress is not None
    assert (state.progress.step, state.progress.loss) == (2, "0.5")


# over the listener


def served(listener: Listener) -> list[Line]:
    """The lines of the next connection until it is closed."""
    connection: Connection = wait_until(listener.accept, "the connection")[0]
    lines: list[Line] = []
    wait_until(lambda: lines.extend(connection.read()) or not connection.open, "the end of the connection")
    listener.remove(connection)
    return lines


def post(variables: Mapping[str, str], status: Mapping[str, Any]) -> tuple[list[int], threading.Thread]:
    """Posts as transformers does, beside this thread. The code of the answer is put into the list."""
    token = Path(variables[STATUS_TOKEN]).read_text()
    message = urllib.request.Request(variables[STATUS_URL], json.dumps({"trainerStatus": status}).encode(), method="POST")
    message.add_header("Authorization", f"Bearer {token}")
    codes: list[int] = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send() -> None:
        try:
            with opener.open(message, timeout=60) as answer:
                codes.append(answer.status)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
            error.close()

    thread = threading.Thread(target=send)
    thread.start()
    return codes, thread


def variables_of(listener: Listener, folder: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    return status_variables(environ or {}, url=listener.status_url, token=listener.token, folder=folder)


def test_a_program_can_post_with_the_variables_of_its_environment(listener: Listener, tmp_path: Path) -> None:
    variables = variables_of(listener, tmp_path / "state")
    assert stat.S_IMODE(Path(variables[STATUS_TOKEN]).stat().st_mode) == 0o600
    codes, thread = post(variables, {"metrics": metrics(current_step=7, total_steps=40)})
    [line] = served(listener)
    thread.join(60)
    assert codes == [200]
    assert isinstance(line.event, Step)
    assert (line.event.step, line.event.total_steps, line.event.rank) == (7, 40, 4)
    assert line.event.time > 0
    assert listener.posts.is_only_source


def test_posts_of_a_program_that_also_sends_events_are_ignored(listener: Listener, tmp_path: Path) -> None:
    listener.posts.superseded = True
    codes, thread = post(variables_of(listener, tmp_path), {"metrics": metrics(current_step=7)})
    assert served(listener) == []
    thread.join(60)
    assert codes == [200]
    assert not listener.posts.is_only_source


def test_the_token_of_an_older_attempt_is_refused(listener: Listener, tmp_path: Path) -> None:
    older = variables_of(listener, tmp_path)
    Path(older[STATUS_TOKEN]).write_text("0" * 32)
    codes, thread = post(older, {"metrics": metrics(current_step=7)})
    assert served(listener) == []
    thread.join(60)
    assert codes == [401]


def test_a_connection_that_sends_its_request_too_slowly_is_closed(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "ADMISSION_SECONDS", 0.0)
    host, port = listener.status_url.removeprefix("http://").removesuffix(PATH).split(":")
    with socket.create_connection((host, int(port)), timeout=60) as program:
        program.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\n")
        connection = wait_until(listener.accept, "the connection")[0]
        connection.read()
        wait_until(lambda: connection.is_overdue, "the deadline")


@pytest.mark.parametrize("name", [STATUS_URL, STATUS_TOKEN, STATUS_CA_CERT])
def test_variables_of_the_job_are_not_replaced(listener: Listener, tmp_path: Path, name: str) -> None:
    assert variables_of(listener, tmp_path, {name: ""}) == {}


@pytest.mark.parametrize(
    ("environ", "added"),
    [
        ({}, {}),
        ({"http_proxy": "http://proxy:3128"}, {"NO_PROXY": "127.0.0.1"}),
        ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "example.com"}, {"no_proxy": "example.com,127.0.0.1"}),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, {}),
    ],
)
def test_the_loopback_interface_is_exempt_from_the_proxy_of_the_user(
    listener: Listener, tmp_path: Path, environ: dict[str, str], added: dict[str, str]
) -> None:
    variables = variables_of(listener, tmp_path, environ)
    assert {name: value for name, value in variables.items() if name not in (STATUS_URL, STATUS_TOKEN)} == added
