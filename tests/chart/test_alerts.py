"""The alerts of the chart: each fires when it should, only then, and has a runbook. promtool tests the rules that the chart renders."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import local_cluster
from local_cluster import debian
from muster.operator.metrics.families import FAMILIES
from tests.chart.chart_variants import ROOT, Render

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "alert_cases.yaml").read_text())
RUNBOOKS = ROOT / "docs" / "runbooks"
SOURCE = yaml.safe_load((ROOT / "charts" / "muster" / "files" / "rules.yaml").read_text())
IDENTITIES = ("job", "job_name", "object_namespace")
"""Each alert has one of these labels."""
ALERTS = {rule["alert"]: rule for group in SOURCE["groups"] for rule in group["rules"]}


def rendered(render: Render, **settings: Any) -> dict[str, Any]:
    """The spec of the PrometheusRule."""
    values = {"metrics": {"rules": {"enabled": True, **settings}}}
    [rules] = [each for each in render(values) if each["kind"] == "PrometheusRule"]
    return dict(rules["spec"])


def alerts(spec: dict[str, Any]) -> dict[str, Any]:
    return {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"] or ()}


@pytest.fixture(scope="module")
def folder(render: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the rules as the chart renders them."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rendered(render)))
    return folder


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = debian.program(local_cluster.Places.default(), "promtool", package="prometheus")
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_promtool_finds_no_fault_in_the_rules(folder: Path) -> None:
    done = promtool(folder, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_only_then(folder: Path) -> None:
    assert set(CASES) == set(ALERTS), "each alert has its cases in alert_cases.yaml"
    fires = [_Case(alert, alert, case["at"], case["fires"]) for alert, case in CASES.items()]
    quiet = [
        _Case(f"{alert}-{index}", alert, case["at"], each) for alert, case in CASES.items() for index, each in enumerate(case["quiet"])
    ]
    tests = [_test("fires", fires, firing=1), _test("quiet", quiet, firing=0)]
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    done = promtool(folder, "test", "rules", "tests.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class _Case:
    """Series with which an alert fires, or does not, at a time. The id is a label of the series and of the alert."""

    id: str
    alert: str
    at: str
    series: dict[str, str]

    def labelled(self) -> list[dict[str, str]]:
        own = ", ".join(f'{label}="{self.id}"' for label in IDENTITIES)
        names = {name: f"{name.rstrip('}')}, {own}}}" if "{" in name else f"{name}{{{own}}}" for name in self.series}
        return [{"series": names[name], "values": str(values)} for name, values in self.series.items()]

    def count(self) -> str:
        """A query for the number of alerts that fire. An alert on absence has no label."""
        labels = [""] if "absent" in ALERTS[self.alert]["expr"] else [f', {label}="{self.id}"' for label in IDENTITIES]
        fire = " or ".join(f'ALERTS{{alertname="{self.alert}", alertstate="firing"{label}}}' for label in labels)
        return f"count({fire}) or vector(0)"


def _test(name: str, cases: list[_Case], *, firing: int) -> dict[str, Any]:
    expected = [{"labels": "{}", "value": firing}]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [series for case in cases for series in case.labelled()],
        "promql_expr_test": [{"expr": case.count(), "eval_time": case.at, "exp_samples": expected} for case in cases],
    }


def test_each_alert_says_how_bad_it_is_what_it_means_and_where_its_runbook_is(render: Render) -> None:
    for name, alert in alerts(rendered(render, runbooks="https://example.com/runbooks/")).items():
        assert alert["labels"] == {"severity": alert["labels"]["severity"]}
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"] == f"https://example.com/runbooks/{name}.md"
        assert not alert["annotations"]["summary"].endswith(".")
        assert alert["annotations"]["description"].endswith(".")


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    pages = {page.stem: page.read_text() for page in RUNBOOKS.glob("*.md") if page.stem != "README"}
    assert set(pages) == set(ALERTS)
    index = (RUNBOOKS / "README.md").read_text()
    for name, text in pages.items():
        assert re.findall(r"^#+ (.+)$", text, re.MULTILINE) == [name, "Meaning", "Look", "Do"], name
        assert f"[{name}]({name}.md)" in index
        assert "kubectl" in text.partition("## Look")[2]


def test_alerts_use_only_metrics_of_the_operator() -> None:
    names = {family.name for family in FAMILIES} | {f"{family.name}_bucket" for family in FAMILIES if family.kind == "histogram"}
    for alert in ALERTS.values():
        used = set(re.findall(r"\b(?:muster|workqueue)_\w+", alert["expr"]))
        assert used, alert["alert"]
        assert used <= names


def test_an_alert_can_be_left_out(render: Render) -> None:
    assert set(ALERTS) - set(alerts(rendered(render, disabled=["MusterJobGoodputLow"]))) == {"MusterJobGoodputLow"}
    assert not [each for each in render() if each["kind"] == "PrometheusRule"], "the Prometheus operator may not be there"
