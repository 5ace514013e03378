"""Alerts and dashboards of the package, and the metrics that they use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec.yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES: Final = Path(__file__).parents[2] / "src" / "meshfleet" / "deploy"
ALERTS: Final = FILES / "prometheus" / "alerts.yml"
GRAFANA: Final = FILES / "grafana"

METRIC_NAME: Final = re.compile(r"\b(?:meshfleet|process)_[a-z_]+\b|\bup\b")


class PanelQuery(NamedTuple):
    """Query of a panel, and where it is."""

    dashboard: str
    panel: str
    text: str

    @property
    def metrics(self) -> set[str]:
        """Names of the metrics in the query."""
        return set(METRIC_NAME.findall(self.text))


def load_dashboards() -> dict[str, dict[str, Any]]:
    """Load all dashboards by name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(GRAFANA.glob("*.json"))}


def list_queries(*names: str) -> Iterator[PanelQuery]:
    """Yield the queries of all panels of these dashboards."""
    dashboards = load_dashboards()
    for name in names:
        for panel in dashboards[name]["panels"]:
            for target in panel["targets"]:
                yield PanelQuery(name, panel["title"], target.get("expr") or target["rawSql"])


def load_alert_rules() -> list[dict[str, Any]]:
    """Load all alert rules."""
    groups = msgspec.yaml.decode(ALERTS.read_bytes())["groups"]
    return [{**rule, "group": group["name"]} for group in groups for rule in group["rules"]]
