"""The programs of the roles. The driver starts a standalone master and then the user's program. An executor starts a standalone worker.

Both end as soon as their daemon ends. An executor also ends if the process that Spark runs the tasks in is lost: Spark's master would start
another one, but Muster restarts the whole world.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from muster_contract.codes import ExitCode
from muster_contract.environment import EVENTS_FD, NAMES, RANK, ReplicaEnvironment
from muster_contract.errors import BadConfiguration, PeerLost
from muster_contract.events import Activity
from muster_contract.trainer_spec import TrainerSpec
from muster_spark.layout import (
    CONF,
    EXECUTORS,
    FLAGS,
    GPUS,
    JOIN_SECONDS,
    JOIN_SECONDS_SETTING,
    MASTER,
    OBJECT,
    SECRET,
    SETTINGS,
)
from muster_trainer.host.events import Events
from muster_trainer.host.parent import die_with
from muster_trainer.host.sockets import is_loopback
from muster_trainer.host.stopping import StopRequest
from muster_trainer.host.user_program import ECHO_SECONDS, program_words, run_program, script_words
from muster_trainer.host.waiting import BETWEEN_SECONDS, listens, seconds_in, until

LOOK_SECONDS = 0.1
ASK_SECONDS = 5.0
DAEMON_MIB = 512
TAIL_LINES, LONGEST_TAIL = 3, 600
LOOPBACK = "127.0.0.1"
_MASTER_CLASS, _WORKER_CLASS = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_LOST = re.compile(r"Executor (\S+) finished with state (?:EXITED|FAILED|LOST)\b(?!.*exitStatus 0\b)(?:.*exitStatus (\d+))?")
"""What a worker logs if an executor ends by itself. The master ends that of a finished program with the state KILLED."""
_ERROR = re.compile(r"(?:[a-z]\w*\.)+[A-Z]\w*(?:Error|Exception)(?::|$)|ERROR ")
_HEADER = re.compile(r"Spark Executor Command: .*\n=+\n+")
_OLD_JAVA = "UnsupportedClassVersionError"
_OWN_MASTER = re.compile(r"""(?:\.(?:setM|m)aster\(\s*|["']spark\.master["']\s*,\s*)["']((?:local|k8s|spark|yarn)[^"']*)["']""")
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = info
logger.worker.name = org.apache.spark.deploy.worker.Worker
logger.worker.level = info
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def driver(spec: TrainerSpec, events: Events, stop: StopRequest) -> int:
    """Runs the master and the user's program. Its exit code is the result."""
    stop.training = True
    node = Node(spec)
    words = program_words(spec, node.environ)
    _check_master(spec, node.environ)
    try:
        node.start(_MASTER_CLASS)
        if not _joined(node, spec, stop):
            return ExitCode.PREEMPTED
        events.phase(Activity.TRAINING)
        code = run_program(words, node.environ, stop, check=node.check)
        return _completed(node) if code == ExitCode.COMPLETED else code
    finally:
        node.close()


def executor(spec: TrainerSpec, events: Events, stop: StopRequest) -> int:
    """Runs a worker until it or its executor ends, or Muster ends it. Passes on what the executor prints."""
    stop.training = True
    node = Node(spec)
    seconds = seconds_in(spec, JOIN_SECONDS_SETTING, JOIN_SECONDS)
    try:
        if not until(lambda: listens(node.master), stop, seconds=seconds):
            if stop.requested:
                return ExitCode.PREEMPTED
            raise PeerLost(f"Spark's master did not answer at {node.master} for {seconds:g} s; {_INSTEAD}")
        node.start(_WORKER_CLASS, f"--work-dir={node.folder / 'work'}", f"spark://{node.master}")
        events.phase(Activity.TRAINING)
        output = Output(node.folder / "work")
        while not stop.requested:
            output.pass_on()
            if lost := node.lost_executor():
                until(lambda: False, stop, seconds=ECHO_SECONDS)  # the driver may show the cause
                output.pass_on()
                if not stop.requested:
                    raise PeerLost(lost)
            node.check()
            time.sleep(LOOK_SECONDS)
        return ExitCode.PREEMPTED_NOT_SAVED
    finally:
        node.close()


_INSTEAD = f"look at its log, or write more seconds into trainer.config.{JOIN_SECONDS_SETTING}"


class Node:
    """Spark on this node: its files, the environment of its processes, and its daemon."""

    def __init__(self, spec: TrainerSpec) -> None:
        """Raises BadConfiguration if the image has no Spark or no Java."""
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise BadConfiguration("the image has no Python package pyspark; use a trainer image for Spark, or install pyspark in yours")
        java = os.environ.get("JAVA_HOME")
        if not (Path(java, "bin", "java").is_file() if java else shutil.which("java")):
            raise BadConfiguration(
                "the image has no Java (JAVA_HOME, or java on PATH); use a trainer image for Spark, or install Java 17 or 21"
            )
        self._replica = ReplicaEnvironment.from_environment(os.environ)
        self.master = os.environ.get(MASTER, "")
        host, _, port = self.master.rpartition(":")
        if not host or not port.isdecimal():
            raise BadConfiguration(f"{MASTER}: {self.master!r} is no address; Muster sets it, so remove it from your own variables")
        self._local = is_loopback(host)
        self._host = LOOPBACK if self._local else socket.gethostbyname(socket.gethostname())
        self._flags = shlex.split(os.environ.get(FLAGS, ""))
        replica = self._replica
        self.folder = Path(tempfile.gettempdir(), f"muster-spark-{replica.job_uid[:8]}-{replica.role}-{replica.index}")
        self._log = replica.state_dir / f"spark-{replica.attempt}.log"
        self._home = Path(found.origin).parent
        self._write_files()
        self.environ = {**_alone(os.environ), **self._variables(spec)}
        self._daemon: subprocess.Popen[bytes] | None = None

    def _variables(self, spec: TrainerSpec) -> dict[str, str]:
        """Spark's variables. Tasks import the modules beside the program, as the program itself does."""
        program = Path(script_words(spec.script, os.environ)[0]).parent if spec.script else Path()
        paths = [str(program.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,  # of the web pages
            "SPARK_LOCAL_DIRS": os.environ.get("SPARK_LOCAL_DIRS", str(self.folder / "local")),
            "SPARK_DAEMON_MEMORY": f"{DAEMON_MIB}m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # starts in half of the time
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(paths),
        }

    def _write_files(self) -> None:
        """Writes the properties, with the secret of the job, into a folder that nobody else can read."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        (self.folder / "conf").mkdir()
        (self.folder / "conf" / "log4j2.properties").write_text(_LOG4J)
        conf = {str(name): str(value) for name, value in json.loads(os.environ.get(CONF, "{}")).items()}
        conf |= {
            "spark.master": f"spark://{self.master}",
            "spark.driver.host": self._host,
            "spark.driver.bindAddress": self._host,
            "spark.authenticate": "true",
            "spark.authenticate.secret": self._secret(),
            "spark.master.rest.enabled": "false",
            "spark.ui.killEnabled": "false",
        }
        if self._local:
            conf["spark.blockManager.port"] = "0"  # the executors share this machine
        if gpus := int(conf.get(GPUS, "0")):
            resources = self.folder / "conf" / "resources.json"
            addresses = [str(index) for index in range(gpus)]
            resources.write_text(json.dumps([{"id": {"componentName": "spark.worker", "resourceName": "gpu"}, "addresses": addresses}]))
            conf["spark.worker.resourcesFile"] = str(resources)
        (self.folder / "conf" / "spark-defaults.conf").write_text(properties(conf))

    def _secret(self) -> str:
        path = Path(self._replica.objects or "", OBJECT, SECRET)
        try:
            return path.read_text()
        except OSError as error:
            raise BadConfiguration(
                f"the secret of this job ({path}) cannot be read: {error.strerror}; the operator must own Secrets "
                "(rbac.strategyObjects of the chart)"
            ) from None

    def start(self, name: str, *arguments: str) -> None:
        """Starts the daemon. It ends with this process."""
        words = [str(self._home / "bin" / "spark-class"), name, f"--host={self._host}", *self._flags, *arguments]
        with self._log.open("wb") as log:
            self._daemon = subprocess.Popen(
                ["/bin/bash", *(word for each in words for word in _apart(each))],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def check(self) -> None:
        """Raises PeerLost if the daemon has ended, with the end of what it printed, and BadConfiguration if Java is too old."""
        if self._daemon is None or (code := self._daemon.poll()) is None:
            return
        log = self._log.read_text(errors="replace")
        if _OLD_JAVA in log:
            raise BadConfiguration("the Java of the image is too old for its Spark; Spark 4 needs Java 17 or 21")
        message = message_of(log)
        if " spark." in message and "IllegalArgumentException" in message:
            raise BadConfiguration(f"Spark does not take its properties ({message}); correct spec.trainer.config.{SETTINGS}")
        raise PeerLost(f"Spark's daemon on this node has ended with exit code {code}: {message or 'it printed nothing'}")

    def lost_executor(self) -> str | None:
        """A sentence about the executor of this node, if it has ended by itself."""
        match = _LOST.search(self._log.read_text(errors="replace"))
        return f"the Spark executor on this node has ended by itself (exit code {match[2] or 'unknown'})" if match else None

    def state(self) -> dict[str, Any]:
        """What the master of this node reports: `aliveworkers`, `activeapps`, `completedapps`. Empty while it does not answer."""
        port = int(self._flags[self._flags.index("--webui-port") + 1])
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", "/json/")
            found = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        """Ends the daemon. The supervisor ends what it leaves behind."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Output:
    """What the executors of this node print. Spark writes it to files, and Muster's logs show it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def pass_on(self) -> None:
        """Prints the lines that are new."""
        for path in sorted(self._folder.glob("app-*/*/std*")):
            sink = sys.stdout if path.name == "stdout" else sys.stderr
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    lines, newline, _ = file.read().rpartition(b"\n")
            except OSError:  # removed after its application
                continue
            if newline:
                self._read[path] = self._read.get(path, 0) + len(lines) + 1
                print(_HEADER.sub("", lines.decode(errors="replace") + "\n"), end="", file=sink, flush=True)


def properties(conf: Mapping[str, str]) -> str:
    """The text of a file of properties in Java's format."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in conf.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())


def message_of(log: str) -> str:
    """What a daemon printed about its end: its last error, or else its last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    errors = [line for line in lines if _ERROR.search(line)]
    return " ".join(errors[-1:] or lines[-TAIL_LINES:])[-LONGEST_TAIL:]


def own_master(source: str) -> tuple[int, str] | None:
    """The line and the address of a master that a program sets by itself."""
    for number, line in enumerate(source.splitlines(), start=1):
        if match := _OWN_MASTER.search(line.partition("#")[0]):
            return number, match[1]
    return None


def _check_master(spec: TrainerSpec, environ: Mapping[str, str]) -> None:
    if spec.script is None:
        return
    path = Path(script_words(spec.script, environ)[0])
    if found := own_master(path.read_text(errors="replace")):
        number, address = found
        raise BadConfiguration(
            f"spec.trainer.script: {path}:{number} sets the Spark master {address!r}; leave it out, because the job has its own"
        )


def _joined(node: Node, spec: TrainerSpec, stop: StopRequest) -> bool:
    """Waits until all executors have joined. False after a request to stop. Raises PeerLost after the deadline."""
    expected, seconds, count = int(node.environ.get(EXECUTORS, "1")), seconds_in(spec, JOIN_SECONDS_SETTING, JOIN_SECONDS), 0
    deadline = time.monotonic() + seconds
    while not stop.requested:
        node.check()
        count = int(node.state().get("aliveworkers", 0))
        if count >= expected:
            return True
        if time.monotonic() > deadline:
            raise PeerLost(f"{count} of {expected} Spark executors joined in {seconds:g} s; {_INSTEAD}")
        time.sleep(BETWEEN_SECONDS)
    return False


def _completed(node: Node) -> ExitCode:
    """COMPLETED if the program has used this cluster. Raises BadConfiguration otherwise: it has worked elsewhere, on the driver alone."""
    state = node.state()
    if state and not (state.get("activeapps") or state.get("completedapps")):
        raise BadConfiguration(
            "the program ended without a SparkSession in the job's cluster; call SparkSession.builder.getOrCreate() without a master, "
            "because Muster sets it"
        )
    return ExitCode.COMPLETED


def _alone(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of Spark's processes and of the user's program. Each is a world of its own, until a launcher sets its rank. The ranks
    of a launcher meet at its own address, because Spark chooses where rank 0 runs."""
    own = {RANK: "0", NAMES["first_rank"]: "0", NAMES["world_size"]: "1"}
    return {**{name: value for name, value in environ.items() if name not in (EVENTS_FD, NAMES["world_address"])}, **own}


def _apart(word: str) -> Sequence[str]:
    """A flag and its value as two words, as Spark's daemons read them."""
    flag, equals, value = word.partition("=")
    return (flag, value) if equals and flag.startswith("--") else (word,)
