"""What both sides agree on: the variables, ports and settings of a Spark cluster. It imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping

DRIVER, EXECUTOR = "driver", "executor"

MASTER = "MUSTER_SPARK_MASTER"
"""The host and port of the standalone master, which runs beside the driver."""
EXECUTORS = "MUSTER_SPARK_EXECUTORS"
"""The number of executors of the cluster."""
FLAGS = "MUSTER_SPARK_FLAGS"
"""The flags of the standalone master or worker on this node, separated by spaces."""
CONF = "MUSTER_SPARK_CONF"
"""Spark's properties on this node, as JSON. The program adds those that only the pod knows."""

SETTINGS = "sparkConf"
"""The setting in `trainer.config` with further properties of Spark, as in a SparkApplication."""
JOIN_SECONDS_SETTING = "joinSeconds"
"""The setting in `trainer.config` with the longest time in seconds until all executors have joined."""
JOIN_SECONDS = 900

OBJECT, SECRET = "spark", "secret"
"""The Secret with which the processes of the cluster authenticate, and its entry."""

MASTER_PORT, MASTER_UI, DRIVER_RPC, DRIVER_BLOCKS, DRIVER_UI = "spark-master", "spark-master-ui", "spark-driver", "spark-blocks", "spark-ui"
WORKER_PORT, WORKER_UI, EXECUTOR_BLOCKS = "spark-worker", "spark-worker-ui", "spark-exec"
DRIVER_PORTS: Mapping[str, int] = {MASTER_PORT: 7077, DRIVER_RPC: 7078, DRIVER_BLOCKS: 7079, DRIVER_UI: 4040, MASTER_UI: 8090}
EXECUTOR_PORTS: Mapping[str, int] = {WORKER_PORT: 7178, EXECUTOR_BLOCKS: 7179, WORKER_UI: 8091}
"""The ports of each role. Web pages listen on the loopback interface only."""

GPUS = "spark.worker.resource.gpu.amount"
OWN = (
    "spark.master",
    "spark.submit.deployMode",
    "spark.driver.host",
    "spark.driver.port",
    "spark.driver.bindAddress",
    "spark.driver.blockManager.port",
    "spark.blockManager.port",
    "spark.ui.port",
    "spark.authenticate",
    "spark.authenticate.secret",
    "spark.authenticate.secret.file",
    "spark.worker.resourcesFile",
    GPUS,
)
"""The properties that only Muster sets."""
OF_ROLES: Mapping[str, str] = {
    "spark.executor.instances": "roles.executor.replicas",
    "spark.executor.cores": "limits.cpu of roles.executor.resources",
    "spark.cores.max": "limits.cpu of roles.executor.resources",
    "spark.executor.resource.gpu.amount": "limits of roles.executor.resources",
}
"""The properties that follow from the roles, and what to write instead."""
