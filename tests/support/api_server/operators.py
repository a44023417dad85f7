"""Operators as processes with the service account of the chart."""

from __future__ import annotations

import base64
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import local_cluster
from local_cluster.ports import free_ports
from tests.support.api_server.cluster import RELEASE_NAMESPACE, Cluster
from tests.support.waiting import wait_until

ADDRESS = "10.244.0.7"


class OperatorProcess:
    """A process `python -m muster.operator`. A second start is what a kubelet does with a container that has ended. `module` is that of
    another version."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        pod: str,
        settings: Mapping[str, Any],
        env: Mapping[str, str] | None = None,
        module: str = "muster.operator",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.health, self.metrics, self.coordination = free_ports(3)
        configuration = {**cluster.configuration, **settings}
        configuration["health"] = {"port": self.health}
        configuration["metrics"] = {"port": self.metrics}
        configuration["coordination"] = {**configuration["coordination"], "port": self.coordination}
        (folder / "operator.yaml").write_text(yaml.safe_dump(configuration))
        self._cluster, self._secret = cluster, configuration["coordination"]["secret"]
        self.log = folder / "operator.log"
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.account_kubeconfig(folder / "kubeconfig")),
            "MUSTER_CONFIG": str(folder / "operator.yaml"),
            "POD_NAME": pod,
            "POD_NAMESPACE": RELEASE_NAMESPACE,
            "POD_IP": ADDRESS,
            **(env or {}),
        }
        self._module = module
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> OperatorProcess:
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", self._module]
            self.process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=local_cluster.die_with_parent,
            )
        return self

    def ready(self) -> OperatorProcess:
        wait_until(lambda: self.probe("readyz")[0] == 200 and self.leads, f"the operator leads and is ready; see {self.log}")
        return self

    @property
    def leads(self) -> bool:
        return "muster_leader 1" in self.figures()

    def probe(self, name: str) -> tuple[int, str]:
        """Status and text of a probe. Status 0 means no answer."""
        return _get(f"http://127.0.0.1:{self.health}/{name}")

    def figures(self) -> str:
        return self.scrape(self._cluster.scraper)[1]

    def scrape(self, token: str | None) -> tuple[int, str]:
        """Status and text of the metrics for the bearer of this token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return _get(urllib.request.Request(f"https://127.0.0.1:{self.metrics}/metrics", headers=headers))

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def trusted(self) -> ssl.SSLContext:
        """Settings of a TLS client of its coordination channel, whose certificate has another host name than the test uses."""
        secret = self._cluster.admin.get(f"/api/v1/namespaces/{RELEASE_NAMESPACE}/secrets/{self._secret}")
        context = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["tls.crt"]).decode())
        context.check_hostname = False
        return context

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)


@contextmanager
def operating(
    cluster: Cluster, folder: Path, *, pod: str = "muster-0", env: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[OperatorProcess]:
    """An operator that leads and is ready. `settings` override its configuration, and `env` its environment."""
    operator = OperatorProcess(cluster, folder, pod=pod, settings=settings, env=env)
    try:
        yield operator.start().ready()
    finally:
        operator.close()


def _get(url: str | urllib.request.Request) -> tuple[int, str]:
    unverified = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, timeout=20, context=unverified) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
