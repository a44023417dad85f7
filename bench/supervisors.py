"""Simulated supervisors, which replace thousands of replicas in the benchmarks.

Each one uses the real coordination channel over TLS with the token of its own pod, and follows the replies as a supervisor does. No
process trains: a world does its first step as soon as all its members have started.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

from muster_contract.codes import ExitCode
from muster_contract.events import Activity, Resumed
from muster_contract.reports import Marks, Progress, Report, TerminationMessage
from muster_contract.wire import decode, encode
from muster_trainer.supervisor.reporting import GATHERED, LONGEST_DELAY
from tests.support.api_server.api import Api, Object
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kubelet import PODS
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.reports import progress, report, token

STEP_SECONDS = 0.5
PEER_LOST_SECONDS = 0.1  # from the loss of a member until the others see their connections break
ANSWER_SECONDS = 30.0
TOKENS_AT_ONCE = 8


class TooManyRequestsError(ValueError):
    """The coordinator answered 429. Its answer asks for a report after so many `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"429: again in {seconds:g} s")
        self.seconds = seconds


class Line:
    """The connection of a supervisor to the coordinator. It stays open until the coordinator closes it."""

    def __init__(self, port: int, trusted: ssl.SSLContext) -> None:
        self._port, self._trusted = port, trusted
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes, bearer: str, *, may_hold: bool = False) -> Object:
        """The reply, which the coordinator may hold for some seconds. Raises OSError if there is no answer in time, TooManyRequestsError
        for 429, and ValueError for other statuses than 200."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._exchange(body, bearer, may_hold=may_hold)
        except TooManyRequestsError:
            raise
        except asyncio.IncompleteReadError as error:
            self.close()
            raise ConnectionResetError("the connection was closed") from error
        except BaseException:
            self.close()
            raise

    async def _exchange(self, body: bytes, bearer: str, *, may_hold: bool) -> Object:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._trusted)
        reader, writer = self._streams
        fields: tuple[str, ...] = (
            f"Authorization: Bearer {bearer}",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            "Host: coordinator",
        )
        fields += (f"Prefer: wait={LONGEST_DELAY}",) if may_hold else ()
        writer.write("\r\n".join(("POST /v1/report HTTP/1.1", *fields, "", "")).encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length:"))
        content = await reader.readexactly(length)
        if "connection: close" in head:
            self.close()
        if head.startswith("http/1.1 429"):
            raise TooManyRequestsError(next(float(line.partition(":")[2]) for line in head.splitlines() if line.startswith("retry-after:")))
        if not head.startswith("http/1.1 200"):
            raise ValueError(f"{head.splitlines()[0]}: {content[:200].decode(errors='replace')}")
        return dict(json.loads(content))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class World:
    """The supervisors of one job. `stepped` is when all of them had started each attempt, in monotonic seconds."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[str, Supervisor] = {}
        self.stepped: dict[int, float] = {}
        self._running: Counter[int] = Counter()

    def add(self, uid: str, supervisor: Supervisor) -> None:
        self.members[uid] = supervisor
        if not supervisor.waiting:
            self.starts(supervisor.attempt)

    def remove(self, uid: str) -> None:
        supervisor = self.members.pop(uid)
        if not supervisor.waiting:
            self.ends(supervisor.attempt)

    def starts(self, attempt: int) -> None:
        """Records that the processes of one member have started an attempt. The last member starts the first step."""
        self._running[attempt] += 1
        if self._running[attempt] == self.size and attempt not in self.stepped:
            self.stepped[attempt] = time.monotonic()
            for each in self.members.values():
                each.news.set()

    def ends(self, attempt: int) -> None:
        """Records that the processes of one member have ended an attempt."""
        self._running[attempt] -= 1

    def breaks(self) -> None:
        """Informs the remaining members that another member is gone."""
        for each in self.members.values():
            each.lose_peer()


class Supervisor:
    """One replica."""

    def __init__(self, pod: Object, world: World) -> None:
        self.pod, self.world = pod, world
        self.attempt = int(pod["metadata"]["labels"]["muster.dev/attempt"])
        self.waiting = False
        self.news = asyncio.Event()
        self.ended = asyncio.Event()
        """Set while no process runs. Such a replica does not gather changes."""
        self._words: TerminationMessage | None = None
        self._words_attempt = -1
        self._sequence = 0

    def lose_peer(self) -> None:
        if self.waiting:
            return
        self.waiting, self._words_attempt = True, self.attempt
        self.ended.set()
        self.world.ends(self.attempt)
        self._words = TerminationMessage(
            code=ExitCode.PEER_LOST,
            reason=ExitCode.PEER_LOST.reason,
            message="Connection closed by peer",
            rank=0,
            exit_code=1,
            attempt=self.attempt,
            ended_at=time.time(),
        )
        self.news.set()

    def obey(self, reply: Object) -> None:
        if self.waiting and reply.get("world") and reply["attempt"] >= self.attempt and reply["attempt"] > self._words_attempt:
            self.attempt, self.waiting, self._words = reply["attempt"], False, None
            self.ended.clear()
            self.news.set()
            self.world.starts(self.attempt)
        elif reply["attempt"] > self.attempt:
            if not self.waiting:
                self._words, self._words_attempt = None, self.attempt
                self.world.ends(self.attempt)
            self.attempt, self.waiting = reply["attempt"], True
            self.ended.set()
            self.news.set()

    async def turn(self, interval: float) -> None:
        """Waits until the next report is due."""
        begun = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await self.news.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(begun + GATHERED * interval - time.monotonic()):
                await self.ended.wait()

    def report(self) -> Report:
        """The next report."""
        self._sequence += 1
        state = replace(
            decode(Report, report(self.pod, sequence=self._sequence)),
            attempt=self.attempt,
            phase=Activity.STARTING,
            waiting=self.waiting,
            in_place=True,
            termination=self._words,
        )
        stepped = None if self.waiting else self.world.stepped.get(self.attempt)
        if stepped is not None:
            step, when = 1 + int((time.monotonic() - stepped) / STEP_SECONDS), time.time() - (time.monotonic() - stepped)
            state = replace(
                state,
                phase=Activity.TRAINING,
                marks=Marks(restoring=when, resumed=when, stepped=when),
                idle_seconds=0.0,
                resumed=Resumed(step=0),
                progress=decode(Progress, progress(step)) if state.index == 0 else None,
            )
        return state


class Crew:
    """The supervisors of all pods of a namespace that run, in a thread of their own."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        operator: OperatorProcess,
        sizes: Mapping[str, int],
        *,
        world: Callable[[int], World] = World,
        supervisor: Callable[[Object, World], Supervisor] = Supervisor,
    ) -> None:
        self.worlds = {job: world(size) for job, size in sizes.items()}
        self._supervisor = supervisor
        self.reports = 0
        self.failures: list[str] = []
        self.shed = 0
        self.seconds: list[float] = []
        """The seconds of each report whose reply may not be held, from the first packet to the whole reply."""
        self._api, self._jobs, self._path, self._operator = api, Jobs(api, namespace), PODS.format(namespace), operator
        self._trusted = operator.trusted()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(TOKENS_AT_ONCE)
        self._closed = False

    @contextmanager
    def working(self) -> Iterator[Crew]:
        version = str(self._api.get(f"{self._path}?limit=1")["metadata"]["resourceVersion"])
        self._watch = self._api.watch(self._path, version)
        threads = [threading.Thread(target=each, daemon=True) for each in (self._loop.run_forever, self._listen)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._closed = True
            self._watch.close()
            threads[1].join(10)
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            threads[0].join(10)
            self._loop.close()
            self._pool.shutdown()

    def stepped(self, job: str, attempt: int) -> float | None:
        """When the world of this attempt, or of a later one, did its first step."""
        return min((when for number, when in list(self.worlds[job].stepped.items()) if number >= attempt), default=None)

    def _listen(self) -> None:
        version = "0"
        while not self._closed:
            for kind, pod in self._watch:
                version = pod["metadata"]["resourceVersion"]
                if kind in ("ADDED", "MODIFIED", "DELETED"):
                    self._loop.call_soon_threadsafe(self._on_pod, kind, pod)
            if not self._closed:  # a server under load drops watches that are slow to read
                self._watch = self._api.watch(self._path, version)

    def _on_pod(self, kind: str, pod: Object) -> None:
        uid, world = pod["metadata"]["uid"], self.worlds.get(pod["metadata"]["labels"].get("muster.dev/job-name", ""))
        if world is None:
            return
        runs = kind != "DELETED" and pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        if runs and uid not in self._tasks:
            supervisor = self._supervisor(pod, world)
            self._tasks[uid] = self._loop.create_task(self._live(supervisor))
            world.add(uid, supervisor)
        elif not runs and uid in world.members:
            world.remove(uid)
            self._tasks[uid].cancel()
            self._loop.call_later(PEER_LOST_SECONDS, world.breaks)

    async def _live(self, supervisor: Supervisor) -> None:
        bearer = await self._loop.run_in_executor(self._pool, token, self._jobs, supervisor.pod)
        line, interval, has_reply = Line(self._operator.coordination, self._trusted), 1.0, False
        try:
            while not self._closed:
                supervisor.news.clear()
                begun, may_hold = time.monotonic(), has_reply and supervisor.waiting
                try:
                    reply = await line.post(json.dumps(encode(supervisor.report())).encode(), bearer, may_hold=may_hold)
                except TooManyRequestsError as error:
                    self.shed += 1
                    await asyncio.sleep(error.seconds)
                    continue
                except (OSError, ValueError) as error:
                    self.failures.append(str(error) or type(error).__name__)
                else:
                    self.reports, has_reply = self.reports + 1, True
                    if not may_hold:
                        self.seconds.append(time.monotonic() - begun)
                    interval = float(reply["intervalSeconds"])
                    supervisor.obey(reply)
                await supervisor.turn(interval)
        finally:
            line.close()

    async def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
