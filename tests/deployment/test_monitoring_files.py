"""Alerts and dashboards, without the programs that use them."""

from __future__ import annotations

import json
import re
import runpy
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from meshfleet.client.blocking import Fleet
from meshfleet.testing import running_fleet
from tests.deployment.monitoring_files import (
    FILES,
    GRAFANA,
    METRIC_NAME,
    list_queries,
    load_alert_rules,
    load_dashboards,
)
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = FILES.parents[2]
RUNBOOK = ROOT / "docs" / "runbook"

PLACEHOLDER = "https://docs.example.org/meshfleet/runbook"


def test_every_metric_of_alerts_and_dashboards_exists() -> None:
    used = {name for rule in load_alert_rules() for name in METRIC_NAME.findall(rule["expr"])}
    used |= {name for query in list_queries("fleet", "service") for name in query.metrics}
    with (
        running_fleet(devices=1) as running,
        Fleet(running.url, user=running.user, password=running.password) as fleet,
    ):
        headers = {"Authorization": f"Bearer {fleet.log_in().token}"}
        text = httpx.get(f"{running.url}/metrics", headers=headers, verify=NO_TRUSTED_AUTHORITIES).text
    names = {"up", "meshfleet_certificate_end_timestamp_seconds"}  # of Prometheus itself, and only with TLS
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    assert used - names == set()
    assert len(used) > 40


def test_dashboards_are_those_of_the_script() -> None:
    built = runpy.run_path(str(ROOT / "scripts" / "build_dashboards.py"))["build_dashboards"]()
    assert {path.name: path.read_text("utf-8") for path in GRAFANA.glob("*.json")} == built, (
        "run make dashboards"
    )


def test_dashboards_are_complete() -> None:
    dashboards = load_dashboards()
    assert dashboards.keys() == {"device", "fleet", "service"}
    assert len({each["uid"] for each in dashboards.values()}) == len(dashboards)
    for name, dashboard in dashboards.items():
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels), name
        for panel in panels:
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["title"], name
            assert panel["description"], panel["title"]
            names = [target["refId"] for target in panel["targets"]]
            assert len(set(names)) == len(names) > 0, panel["title"]
        assert _find_overlaps(panels) == [], name


def _find_overlaps(panels: list[dict[str, Any]]) -> list[str]:
    """Return the titles of panels that are not inside the 24 columns, or cover a place of another panel."""
    taken: set[tuple[int, int]] = set()
    overlapping = []
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        if cells & taken or place["x"] + place["w"] > 24:
            overlapping.append(panel["title"])
        taken |= cells
    return overlapping


def test_every_data_source_is_a_variable() -> None:
    for name, dashboard in load_dashboards().items():
        sources = list(_find_values(dashboard, "datasource"))
        assert {source["uid"] for source in sources} == {"${datasource}"}, name
        variables = {each["name"]: each["type"] for each in dashboard["templating"]["list"]}
        assert variables.pop("datasource") == "datasource"
        assert set(variables.values()) == {"query"}
        used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(dashboard["panels"])))
        assert used - {"datasource", "__rate_interval"} <= variables.keys() | {"__"}, name
        for panel in dashboard["panels"]:
            assert len(panel["targets"]) == len([t for t in panel["targets"] if "datasource" in t])


def _find_values(content: object, key: str) -> Iterator[Any]:
    if isinstance(content, dict):
        if key in content and not isinstance(content[key], str):
            yield content[key]
        for value in content.values():
            yield from _find_values(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from _find_values(value, key)


def test_every_alert_says_what_to_do() -> None:
    rules = load_alert_rules()
    for rule in rules:
        name = rule["alert"]
        assert rule["for"], name
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"{PLACEHOLDER}/{name}.html", name
        page = (RUNBOOK / f"{name}.md").read_text("utf-8")
        headings = re.findall("^#+ (.*)$", page, re.MULTILINE)
        assert headings == [name, "What it means", "How to check", "What to do"]
        assert rule["labels"]["severity"] in page.split("\n")[2], name
    assert {path.stem for path in RUNBOOK.glob("*.md")} == {rule["alert"] for rule in rules}
    assert {rule["group"] for rule in rules} == {"meshfleet-service", "meshfleet-fleet"}
