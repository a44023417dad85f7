"""The dashboards of the chart: what Grafana needs of them. tests/apiserver/test_monitoring.py runs their queries."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from muster.operator.metrics.families import FAMILIES
from tests.chart.chart_variants import CHART, Render

DASHBOARDS = {path.name: json.loads(path.read_text()) for path in sorted((CHART / "files" / "dashboards").glob("*.json"))}
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_the_chart_has_one_dashboard_for_the_fleet_and_one_for_a_job_and_only_if_asked(render: Render) -> None:
    maps = [each for each in render({"metrics": {"dashboards": {"enabled": True}}}) if "-dashboard-" in each["metadata"]["name"]]
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == DASHBOARDS
    assert len(maps) == len(DASHBOARDS) == 2
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)
    assert not [each for each in render() if "-dashboard-" in each["metadata"]["name"]]


def test_each_dashboard_has_a_uid_of_its_own() -> None:
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: list[tuple[int, int]] = []
    for place in (panel["gridPos"] for panel in panels):
        cells += [(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])]
        assert place["x"] + place["w"] <= 24
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_uses_the_data_source_that_the_reader_chooses_and_variables_that_exist(name: str) -> None:
    dashboard = DASHBOARDS[name]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert "datasource" in variables
    for panel in dashboard["panels"]:
        for part in (panel, *panel.get("targets", ())):
            assert panel["type"] == "row" or part["datasource"]["uid"] == "${datasource}"
    used = {each for query in queries(dashboard) for each in re.findall(r"\$(\w+)", query)}
    assert used <= variables | {"__rate_interval"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_of_a_query_exists_and_legends_use_labels_that_are_left(name: str) -> None:
    names = {family.name for family in FAMILIES} | {f"{family.name}_bucket" for family in FAMILIES if family.kind == "histogram"} | PROCESS
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\b(?:muster|workqueue|process)_\w+", target["expr"]))
            assert used, target
            assert used <= names
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.match(r"(?:sum|count) by \(([^)]*)\)", target["expr"])
            if grouped:
                assert labels == set(re.split(r",\s*", grouped[1])), target
