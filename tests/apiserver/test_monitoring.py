"""A real Prometheus scrapes the operator, with the configuration of docs/monitoring.md, while jobs and the API server have faults.

The alerts and dashboards are those that the chart renders. Alerts fire at once here, and look back for less time.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import local_cluster
from local_cluster import debian
from local_cluster.ports import free_ports
from muster_contract.codes import ExitCode
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import ACCOUNT, RELEASE_NAMESPACE, Cluster, rendered
from tests.support.api_server.jobs import Jobs, attempt_of, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.api_server.reports import progress, report, tell, token
from tests.support.waiting import wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
WINDOW = "30s"
"""How far rates look back, here and in dashboards."""
FIRING = {
    ("MusterApiThrottled", ""),
    ("MusterChannelRefusals", ""),
    ("MusterJobCheckpointOld", "digits"),
    ("MusterJobPending", "pending"),
    ("MusterJobSavesFail", "broken"),
    ("MusterJobWithoutProgress", "broken"),
    ("MusterReconcileErrors", ""),
}
"""The alerts that the faults of this test set off, with the job. `MusterOperatorDown` is last, because it ends the operator."""
SAVES = {("MusterJobSavesFail", "broken"), ("MusterJobWithoutProgress", "broken")}
DOWN = ("MusterOperatorDown", "")
WITHOUT_DATA = {"count by (object_namespace, kind) (muster_unreadable_objects)": "every object of this cluster can be read"}
"""The queries of dashboards that have no data here, with the reason."""
PRICED = {
    "classes": {"any": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "any", "operator": "Exists"}]}], "pricePerNodeHour": 1.0}}
}
"""One class with a price, so that jobs have a cost."""
NODES = "/api/v1/nodes"
PLURALS = {
    "PriorityLevelConfiguration": "prioritylevelconfigurations",
    "FlowSchema": "flowschemas",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its API. Raises AssertionError with its message where it refuses a query."""
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{query}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[Object]:
        """The series that the expression has now."""
        return list(self.get("query", query=expression)["result"])

    def firing(self) -> dict[tuple[str, str], Object]:
        """The alerts that fire, by name and job."""
        alerts = (each for each in self.get("alerts")["alerts"] if each["state"] == "firing")
        return {(each["labels"]["alertname"], each["labels"].get("job_name", "")): each for each in alerts}

    @property
    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class Rig:
    """One operator with jobs in every state, and the Prometheus that scrapes it."""

    prometheus: Prometheus
    operator: OperatorProcess
    jobs: Jobs
    throttled: Jobs
    """The jobs of a namespace in which the API server refuses the operator's pods."""


@pytest.fixture(scope="module")
def rig(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("monitoring")
    jobs = Jobs(cluster.admin, cluster.namespace("monitored"))
    cluster.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": {"any": ""}}})
    with (
        operating(cluster, folder / "operator", capacity=PRICED) as operator,
        Nodes(cluster.admin, jobs.namespace).working() as nodes,
        _prometheus(cluster, operator, folder) as prometheus,
        _throttled(cluster) as throttled,
    ):
        nodes.runs = lambda pod: not pod["metadata"]["name"].startswith("pending-")
        jobs.submit(job("pending", workers=1))
        jobs.submit(job("broken", workers=1, recovery={"attemptsWithoutProgress": 1000, "infrastructure": {"limit": 1000}}))
        _train(jobs, operator, Kubelet(cluster.admin))
        yield Rig(prometheus, operator, jobs, throttled)
    cluster.admin.delete(f"{NODES}/node-0")
    cluster.empty(jobs.namespace)
    cluster.empty(throttled.namespace)


def _train(jobs: Jobs, operator: OperatorProcess, kubelet: Kubelet) -> None:
    """A job that trains, loses its pod, and recovers. Its commit is old."""
    jobs.submit(job("digits", workers=1))
    jobs.reaches("digits", "Running")
    commit = {"step": 100, "path": "step-00000100", "time": time.time() - 7200, "seconds": 2.0, "blockedSeconds": 0.5}
    [pod] = jobs.pods("digits")
    assert tell(operator, token(jobs, pod), report(pod, progress=progress(120), checkpoint=commit, phase="Training"))[0] == 200
    wait_until(lambda: jobs.status("digits").get("checkpoint"), "the commit is in the status")
    kubelet.disrupt(pod)
    jobs.reaches("digits", "Running", attempt=1)
    [pod] = jobs.pods("digits")
    resumed = {"committedStep": 100, "step": 100, "path": "step-00000100", "skipped": []}
    assert tell(operator, token(jobs, pod), report(pod, resumed=resumed, progress=progress(130), phase="Training"))[0] == 200
    wait_until(lambda: jobs.status("digits")["attempts"][-1].get("phases"), "the recovery is recorded")


def _fail_to_save(jobs: Jobs) -> None:
    """Ends the running pods of the job `broken` as a supervisor does when the storage cannot be reached."""
    for pod in jobs.pods("broken"):
        if pod["status"].get("phase") == "Running":
            code = ExitCode.STORAGE_UNAVAILABLE
            words = {"code": code.value, "reason": code.reason, "message": "no space left", "attempt": attempt_of(pod)}
            Kubelet(jobs.api).end(pod, code.value, message=json.dumps(words))


@pytest.fixture(scope="module")
def alarms(rig: Rig) -> list[Object]:
    """The alerts that have fired, once all that are expected have."""
    seen: dict[tuple[str, str], Object] = {}

    def all_fire() -> bool:
        if 'status="429"' not in rig.operator.figures():
            rig.throttled.submit({**job("refused", workers=16), "metadata": {"generateName": "refused-"}})
        if not seen.keys() >= SAVES:
            _fail_to_save(rig.jobs)
        tell(rig.operator, "a.b.c", {})  # has no valid token, so the channel refuses it
        seen.update(rig.prometheus.firing())
        return seen.keys() >= FIRING

    wait_until(all_fire, f"all of {sorted(FIRING)} fire", seconds=300, pause=1.0)
    return list(seen.values())


def test_prometheus_can_evaluate_every_alert(rig: Rig, alarms: list[Object]) -> None:
    rules = [rule for group in rig.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(_rules()["groups"][0]["rules"]) + len(_rules()["groups"][1]["rules"])
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []


def test_faults_cause_alerts_with_complete_texts(alarms: list[Object]) -> None:
    for alert in alarms:
        texts = alert["annotations"].values()
        assert all(texts)
        assert not [text for text in texts if "<no value>" in text or "<error" in text]
        assert "job_name" not in alert["labels"] or alert["labels"]["job_name"] in alert["annotations"]["summary"]


def test_every_query_of_the_dashboards_has_data(rig: Rig, alarms: list[Object]) -> None:
    variables = {"$namespace": rig.jobs.namespace, "$job": "digits", "$__rate_interval": WINDOW}

    def data(expression: str) -> list[float]:
        for name, value in variables.items():
            expression = expression.replace(name, value)
        return [float(series["value"][1]) for series in rig.prometheus.query(expression)]

    expressions = set(_queries())
    assert set(WITHOUT_DATA) <= expressions
    missing: list[str] = []

    def all_have_data() -> bool:
        missing[:] = [expression for expression in expressions - set(WITHOUT_DATA) if not data(expression)]
        return not missing

    try:
        wait_until(all_have_data, "every other query has data", seconds=300, pause=1.0)
    except AssertionError:
        assert not missing, "queries without data"
    assert not [expression for expression in WITHOUT_DATA if data(expression)]


def test_a_missing_operator_causes_an_alert(rig: Rig, alarms: list[Object]) -> None:
    """Last, because it ends the operator."""
    wait_until(lambda: DOWN not in rig.prometheus.firing(), "the operator is scraped", seconds=120, pause=0.5)
    rig.operator.stop()
    wait_until(lambda: DOWN in rig.prometheus.firing(), "the alert on the lost operator fires", seconds=120, pause=0.5)


@contextmanager
def _prometheus(cluster: Cluster, operator: OperatorProcess, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with the chart's rules and the scrape configuration of the documentation."""
    [port] = free_ports(1)
    (folder / "token").write_text(cluster.scraper)
    (folder / "rules.yaml").write_text(yaml.safe_dump(_rules()))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(_configuration(operator, folder)))
    program = debian.program(local_cluster.Places.default(), "prometheus", package="prometheus")
    options = ["--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program, *options], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    prometheus = Prometheus(port)
    try:
        wait_until(lambda: prometheus.is_up, f"Prometheus is ready; see {log.name}", seconds=60, pause=0.2)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _rules() -> Object:
    """The rules of the chart. Alerts fire at once, and rates look back for less time."""
    [rules] = [each for each in rendered("--set=metrics.rules.enabled=true") if each["kind"] == "PrometheusRule"]
    for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        rule.pop("for", None)
        rule["expr"] = re.sub(r"\[\d+m\]", f"[{WINDOW}]", rule["expr"])
    return dict(rules["spec"])


def _configuration(operator: OperatorProcess, folder: Path) -> Object:
    """The scrape configuration of docs/monitoring.md, with the address of the operator instead of discovery, and often."""
    [text] = re.findall(r"```yaml\n(scrape_configs:.*?)```", PAGE.read_text(), re.DOTALL)
    configuration: Object = yaml.safe_load(text)
    [scrape] = configuration["scrape_configs"]
    for name in ("kubernetes_sd_configs", "relabel_configs"):
        del scrape[name]
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{operator.metrics}"], "labels": {"namespace": RELEASE_NAMESPACE}}]
    scrape["authorization"]["credentials_file"] = str(folder / "token")
    often = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
    return {"global": often, "rule_files": ["rules.yaml"], **configuration}


@contextmanager
def _throttled(cluster: Cluster) -> Iterator[Jobs]:
    """The jobs of a namespace in which the operator cannot create pods. The API server answers with 429 if there are several requests at
    once, because their priority level has no seats, and else with 403."""
    name = cluster.namespace("throttled")
    account = {"kind": "ServiceAccount", "serviceAccount": {"name": ACCOUNT, "namespace": RELEASE_NAMESPACE}}
    pods = {"apiGroups": [""], "resources": ["pods"]}
    limited = {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}
    rule = {"subjects": [account], "resourceRules": [{**pods, "verbs": ["create"], "namespaces": [name]}]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    matched = {"resourceRules": [{**pods, "apiVersions": ["v1"], "operations": ["CREATE"]}]}
    objects = {
        "flowcontrol.apiserver.k8s.io/v1": {
            "PriorityLevelConfiguration": {"type": "Limited", "limited": limited},
            "FlowSchema": {"matchingPrecedence": 100, "priorityLevelConfiguration": {"name": name}, "rules": [rule]},
        },
        "admissionregistration.k8s.io/v1": {
            "ValidatingAdmissionPolicy": {"matchConstraints": matched, "validations": [{"expression": "false", "message": "no pods"}]},
            "ValidatingAdmissionPolicyBinding": {"policyName": name, "validationActions": ["Deny"], "matchResources": here},
        },
    }
    made = []
    try:
        for version, kinds in objects.items():
            for kind, spec in kinds.items():
                folder = f"/apis/{version}/{PLURALS[kind]}"
                cluster.admin.create(folder, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
                made.append(f"{folder}/{name}")
        yield Jobs(cluster.admin, name)
    finally:
        for path in reversed(made):
            cluster.admin.delete(path)


def _queries() -> Iterator[str]:
    """Every query of the dashboards that the chart renders."""
    for each in rendered("--set=metrics.dashboards.enabled=true"):
        if "-dashboard-" in each["metadata"]["name"]:
            [text] = each["data"].values()
            yield from (target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", ()))
