"""The cost of saves for the training: `python -m bench.checkpoints`. Prints JSON.

One process trains a language model whose state takes more than a second to save. Both sides of a ratio run in turns, in one run on one
machine. The result is the median of the pairs, because other programs may run on the machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.strategies.registry import strategy_of
from muster_contract.environment import variables
from muster_contract.events import CommitReason, Step
from muster_contract.reports import Reply
from muster_contract.trainer_spec import CheckpointSpec, TrainerSpec
from muster_contract.wire import encode
from muster_trainer.checkpoint import Fence, Manifest, Store, select
from muster_trainer.data import Order
from muster_trainer.host.events import Events
from muster_trainer.tasks.module import load_task
from muster_trainer.training.saving import Saver

DDP = encode(strategy_of("DDP").runtime)
TRAINER = {
    "strategy": DDP,
    "task": "gpt",
    "config": {"width": 768, "layers": 4, "heads": 8, "context": 32, "optimizer": "Adam", "learningRate": 1e-4, "epochs": 1000},
    "batch": {"globalSize": 2},
}
SECONDS_BETWEEN_SAVES = 60
COORDINATOR = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = sys.argv[2].encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


class Training:
    """The engine and the saver of the loop, called step by step."""

    def __init__(self, directory: Path, steps: int) -> None:
        from muster_trainer.pytorch.ddp import engine

        spec = TrainerSpec.from_json(json.dumps(TRAINER))
        task = load_task(spec)
        self.engine = engine(task, spec)
        self.order = Order(task.config.seed, len(task.train), spec.batch.global_size, 1)
        self.engine.expect(self.order, range(steps))
        store = Store(directory, Fence(datetime(2026, 1, 1, tzinfo=UTC), 0), keep=2)
        store.register(select(CheckpointSpec(str(directory)), store.fence))
        reader, writer = os.pipe()
        self.commits: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        self.events = Events(writer, 0)
        self.saver = Saver(store, self.engine, self.events)
        self.done = 0

    def _listen(self, reader: int) -> None:
        with os.fdopen(reader) as lines:
            self.commits.extend(event for event in map(json.loads, lines) if event["event"] == "commit")

    def manifest(self, reason: CommitReason) -> Manifest:
        return Manifest(self.done, 0, 0, self.done, 1, "DDP", 0, {}, {}, reason, "now")

    def step(self) -> None:
        indices = self.order.batch_indices(self.done)
        outcome = self.engine.step(indices, step=self.done, stop=False, save=False, busy=self.saver.busy)
        self.done += 1
        if not outcome.busy:
            self.saver.advance()

    def window(self, steps: int, *, saves: bool) -> float:
        """The seconds of so many steps, with or without a save, and with a report of each step."""
        begun = time.monotonic()
        if saves:
            self.saver.begin(self.manifest(CommitReason.PERIODIC))
        for _ in range(steps):
            self.step()
            if saves:
                self.events.emit(Step(step=self.done, total_steps=1, epoch=0, loss="1.0", loss_hex="0x1p+0", samples=2, seconds=0.1))
        seconds = time.monotonic() - begun
        assert not self.saver.in_flight, "a save takes longer than the time between saves"
        return seconds

    def synchronous(self) -> float:
        self.step()
        begun = time.monotonic()
        self.saver.save(self.manifest(CommitReason.PERIODIC))
        return time.monotonic() - begun

    def asynchronous(self) -> dict[str, Any]:
        """The event of the commit."""
        self.step()
        count = len(self.commits)
        self.saver.begin(self.manifest(CommitReason.PERIODIC))
        while self.saver.in_flight:
            self.step()
        while len(self.commits) == count:
            time.sleep(0.01)
        return self.commits[-1]


@contextmanager
def heartbeats(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor in another process that reports as often as one of a few supervisors does. Signals stop and continue it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "token").write_text("token")
    (folder / "state").mkdir()
    env = variables(
        job="bench/checkpoints",
        job_uid="uid",
        job_created=datetime(2026, 1, 1, tzinfo=UTC),
        strategy="DDP",
        role="worker",
        index=0,
        attempt=0,
        processes=1,
        pod_name="bench",
        pod_uid="uid",
        trainer=json.dumps({"strategy": DDP, "command": ["sleep", "86400"], "batch": {}}),
        state_dir=folder / "state",
        termination_log=folder / "words",
        coordinator=f"http://127.0.0.1:{port}",
        token_file=folder / "token",
    )
    reply = json.dumps(encode(Reply(attempt=0, interval_seconds=0.2, grace_seconds=0)))
    coordinator = subprocess.Popen([sys.executable, "-c", COORDINATOR, str(port), reply])
    supervisor = subprocess.Popen([sys.executable, "-m", "muster_trainer.supervisor"], env={**os.environ, **env}, stdout=subprocess.DEVNULL)
    try:
        yield supervisor
    finally:
        supervisor.send_signal(signal.SIGCONT)
        supervisor.terminate()
        supervisor.wait(60)
        coordinator.kill()
        coordinator.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7, help="pairs of each comparison")
    parser.add_argument("--directory", type=Path, help="where checkpoints go; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name, heartbeats(Path(name)) as supervisor:
        supervisor.send_signal(signal.SIGSTOP)
        training = Training(Path(name) / "checkpoints", steps=10**6)
        training.asynchronous()  # does the one-time work: slots of the optimizer, memory
        saves = []
        for _ in range(arguments.pairs):
            saves.append((training.synchronous(), training.asynchronous()))
        whole, blocked = (statistics.median(side) for side in zip(*((one, other["blockedSeconds"]) for one, other in saves), strict=True))
        few = 20
        steps = max(few, round(few * SECONDS_BETWEEN_SAVES / training.window(few, saves=False)))
        slower = []
        for number in range(arguments.pairs):
            seconds = {}
            for busy in (number % 2 == 0, number % 2 == 1):
                supervisor.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
                seconds[busy] = training.window(steps, saves=busy)
            slower.append(seconds[True] / seconds[False] - 1)
    figures = {
        "stateMegabytes": round(saves[0][1]["bytes"] / 1e6),
        "synchronousSaveSeconds": round(whole, 3),
        "asynchronousSaveBlocksSeconds": round(blocked, 3),
        "asynchronousSaveTakesSeconds": round(statistics.median(other["seconds"] for _, other in saves), 3),
        "blockedShare": round(statistics.median(other["blockedSeconds"] / one for one, other in saves), 3),
        "blockedShareMustBeAtMost": 0.2,
        "stepSeconds": round(seconds[False] / steps, 3),
        "secondsBetweenSaves": SECONDS_BETWEEN_SAVES,
        "slowdown": round(statistics.median(slower), 4),
        "slowdownOfPairs": [round(each, 4) for each in sorted(slower)],
        "slowdownMustBeAtMost": 0.02,
        "pairs": arguments.pairs,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
