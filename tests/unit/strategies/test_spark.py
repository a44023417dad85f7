"""The strategy Spark: what its nodes are started with, and which jobs it refuses."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from muster.admission.validate import problems
from muster.strategies.registry import STRATEGIES
from muster_spark.layout import CONF, EXECUTORS, FLAGS, MASTER, OF_ROLES, OWN
from muster_spark.nodes import message_of, own_master, properties
from muster_trainer.supervisor.output_tail import peer_lost_pattern, read_tail
from muster_training.place import environment_of, replica_of
from tests.support.golden_jobs import environment_of as variables_of
from tests.support.golden_jobs import job_of, pods_of

SCRIPT = {"script": "train.py"}


def variables(role: str, **spec: Any) -> dict[str, str]:
    return variables_of(pods_of({"strategy": "Spark", "trainer": SCRIPT, **spec})[f"job-{role}-0"])


def conf_of(role: str, **spec: Any) -> dict[str, str]:
    conf: dict[str, str] = json.loads(variables(role, **spec)[CONF])
    return conf


@pytest.mark.parametrize(
    ("executor", "cores", "memory"),
    [
        ({}, "1", "1024m"),
        ({"processesPerReplica": 3}, "3", "1024m"),
        ({"resources": {"limits": {"cpu": "3500m", "memory": "8Gi"}}}, "3", "5485m"),
        ({"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}, "1", "512m"),
    ],
)
def test_an_executor_offers_the_cores_and_memory_of_its_limits(executor: dict[str, Any], cores: str, memory: str) -> None:
    words = shlex.split(variables("executor", roles={"executor": executor})[FLAGS])
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert (flags["--cores"], flags["--memory"]) == (cores, memory)
    conf = conf_of("driver", roles={"executor": {"replicas": 2, **executor}})
    assert (conf["spark.cores.max"], conf["spark.executor.memory"]) == (str(2 * int(cores)), memory)


def test_all_roles_know_the_master_and_the_driver_knows_the_number_of_executors() -> None:
    roles = {"executor": {"replicas": 3}}
    assert variables("driver", roles=roles)[MASTER] == variables("executor", roles=roles)[MASTER] == "driver-0.job.ns.svc:7077"
    assert variables("driver", roles=roles)[EXECUTORS] == "3"


def test_the_driver_has_the_fixed_ports_that_its_pod_declares() -> None:
    conf = conf_of("driver")
    ports = {name: conf[name] for name in conf if name.endswith("port")}
    assert ports == {
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
        "spark.ui.port": "4040",
        "spark.blockManager.port": "7179",
    }


def test_an_executor_with_gpus_offers_them_to_tasks() -> None:
    roles = {"executor": {"resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 8}}}}
    assert conf_of("executor", roles=roles)["spark.worker.resource.gpu.amount"] == "2"
    conf = conf_of("driver", roles=roles)
    assert (conf["spark.executor.resource.gpu.amount"], conf["spark.task.resource.gpu.amount"]) == ("2", "1")


def test_properties_of_the_job_replace_the_defaults() -> None:
    config = {"sparkConf": {"spark.task.maxFailures": 4, "spark.sql.ansi.enabled": False}}
    conf = conf_of("driver", trainer={**SCRIPT, "config": config})
    assert (conf["spark.task.maxFailures"], conf["spark.sql.ansi.enabled"]) == ("4", "false")


@pytest.mark.parametrize(
    ("trainer", "field", "remedy"),
    [
        ({"task": "digits"}, "spec.trainer.task", "script or command"),
        ({"module": "my.model"}, "spec.trainer.module", "script or command"),
        ({"command": ["spark-submit", "train.py"]}, "spec.trainer.command", "write the Python program itself"),
        ({"command": ["sh", "-c", "/opt/spark/bin/spark-submit train.py"]}, "spec.trainer.command", "below spec.trainer.config.sparkConf"),
        ({**SCRIPT, "config": {"joinSeconds": "5"}}, "spec.trainer.config.joinSeconds", "1 to 86400"),
        ({**SCRIPT, "config": {"sparkConf": []}}, "spec.trainer.config.sparkConf", "by name"),
        ({**SCRIPT, "config": {"sparkConf": {"sql": 1}}}, "spec.trainer.config.sparkConf", "write a name such as"),
        (
            {**SCRIPT, "config": {"sparkConf": {"spark.sql.x": ["a"]}}},
            "spec.trainer.config.sparkConf.spark.sql.x",
            "write a text of at most",
        ),
        (
            {**SCRIPT, "config": {"sparkConf": {"spark.kubernetes.namespace": "a"}}},
            "spec.trainer.config.sparkConf.spark.kubernetes.namespace",
            "template of the role",
        ),
        *(({**SCRIPT, "config": {"sparkConf": {name: 1}}}, f"spec.trainer.config.sparkConf.{name}", "leave it out") for name in OWN),
        *(({**SCRIPT, "config": {"sparkConf": {name: 1}}}, f"spec.trainer.config.sparkConf.{name}", of) for name, of in OF_ROLES.items()),
    ],
)
def test_a_job_that_cannot_work_is_refused_with_a_remedy(trainer: dict[str, Any], field: str, remedy: str) -> None:
    found = {each.field: each.message for each in problems(job_of({"strategy": "Spark", "trainer": trainer}))}
    assert remedy in found[field]


@pytest.mark.parametrize(
    ("roles", "field", "remedy"),
    [
        ({"worker": {"replicas": 2}}, "spec.roles", "only driver and executor"),
        ({"driver": {"replicas": 2}}, "spec.roles.driver.replicas", "1"),
        (
            {"executor": {"processesPerReplica": 4, "resources": {"limits": {"cpu": 2}}}},
            "spec.roles.executor.processesPerReplica",
            "do not fit on 2 CPUs",
        ),
    ],
)
def test_roles_that_do_not_fit_are_named(roles: dict[str, Any], field: str, remedy: str) -> None:
    found = {each.field: each.message for each in problems(job_of({"strategy": "Spark", "trainer": SCRIPT, "roles": roles}))}
    assert remedy in found[field]


def test_a_job_needs_no_more_than_its_script() -> None:
    assert problems(job_of({"strategy": "Spark", "trainer": SCRIPT})) == []


def test_properties_are_written_as_java_reads_them() -> None:
    assert properties({"spark.a": "C:\\x", "spark.b": "1\n2"}) == "spark.a=C:\\\\x\nspark.b=1\\n2\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('spark = SparkSession.builder.master("local[*]").getOrCreate()', (1, "local[*]")),
        ("\nconf = SparkConf().setMaster('k8s://https://1.2.3.4')", (2, "k8s://https://1.2.3.4")),
        ('builder.config("spark.master", "spark://host:7077")', (1, "spark://host:7077")),
        ('# builder.master("local")', None),
        ("spark = SparkSession.builder.getOrCreate()", None),
        ("chess.master(1)", None),
    ],
)
def test_a_master_in_a_program_is_found(line: str, found: tuple[int, str] | None) -> None:
    assert own_master(line) == found


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("INFO a\nERROR Worker: no master\n\tat a.b.C.d(E.scala:1)\nINFO b\n", "ERROR Worker: no master"),
        ("one\n\ntwo\nthree\nfour\n", "two three four"),
        ("", ""),
    ],
)
def test_the_output_of_a_daemon_says_why_it_has_ended(log: str, message: str) -> None:
    assert message_of(log) == message


ERROR_IN_A_TASK = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    context.parallelize([7], 1).map(failing).collect()
py4j.protocol.Py4JJavaError: An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier ResultStage.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "train.py", line 3, in failing
ValueError: row 7 has no label

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat scala.Option.foreach(Option.scala:437)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "train.py", line 3, in failing
ValueError: row 7 has no label

\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:600)
\t... 1 more
"""
ERROR_OF_JAVA = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    words.write.parquet("/data")
py4j.protocol.Py4JJavaError: An error occurred while calling o52.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.sql.X.y(X.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.IOUtil.write(IOUtil.java:1)
\t... 20 more
"""
LOST = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    rdd.barrier().mapPartitions(train).collect()
py4j.protocol.Py4JJavaError: An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent \
failure reason: Stage failed because barrier task ResultTask(0, 1) finished unsuccessfully.
ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
"""


@pytest.mark.parametrize(
    ("output", "message", "peer_lost"),
    [
        (ERROR_IN_A_TASK, "ValueError: row 7 has no label", False),
        (ERROR_OF_JAVA, "java.io.IOException: No space left on device", False),
        (LOST, "failed barrier ResultStage", True),
    ],
    ids=["error in a task", "error of Java", "lost executor"],
)
def test_the_message_is_the_error_of_the_program_and_not_the_trace_of_java(output: str, message: str, peer_lost: bool) -> None:
    pattern = peer_lost_pattern(STRATEGIES["Spark"].framework.peer_lost)
    reading = read_tail(output.splitlines(), pattern)
    assert message in reading.message
    assert reading.peer_lost == peer_lost
    assert "\tat" not in reading.message


def test_ranks_of_a_launcher_meet_at_the_address_that_the_launcher_sets() -> None:
    inherited = {name: value for name, value in variables("executor").items() if name != "MUSTER_WORLD_ADDRESS"}
    launched = {**inherited, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "1234"}
    launched |= {"MUSTER_POD_NAME": "p", "MUSTER_POD_UID": "u"}
    replica = replica_of(launched)
    assert replica is not None
    assert replica.world_address == "10.0.0.2:1234"
    assert (environment_of(launched, replica).rank, environment_of(launched, replica).world) == (1, 2)
