"""Writes the dashboards of Grafana, src/meshfleet/deploy/grafana/*.json, from the tables in this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parents[1] / "src" / "meshfleet" / "deploy" / "grafana"

_COLUMNS: Final = 24
"""Width of a dashboard in the units of Grafana."""

_PROMETHEUS: Final = "prometheus"
_POSTGRESQL: Final = "grafana-postgresql-datasource"


class Query(NamedTuple):
    """Query of a panel: PromQL or SQL, and the legend of its series."""

    text: str
    legend: str = ""


class Panel(NamedTuple):
    """Panel of a dashboard. `{}` in a PromQL query stands for the label `job`."""

    title: str
    kind: str
    """Type of the panel in Grafana: timeseries, stat, bargauge or table."""
    unit: str
    queries: tuple[Query, ...]
    description: str
    width: int = 8
    height: int = 8
    fields: dict[str, Any] = {}  # noqa: RUF012 # never changed
    """Further defaults of the fields, such as thresholds."""
    overrides: tuple[dict[str, Any], ...] = ()
    transformations: tuple[dict[str, Any], ...] = ()
    repeat: str = ""
    """Variable for each value of which the panel is repeated."""


class Variable(NamedTuple):
    """Variable of a dashboard, whose values come from a query."""

    name: str
    label: str
    query: str
    is_multiple: bool = True


def _query(text: str, legend: str = "") -> Query:
    return Query(text.replace("{}", '{job=~"$job"}').replace("{,", '{job=~"$job",'), legend)


def _thresholds(*steps: tuple[float | None, str]) -> dict[str, Any]:
    return {
        "thresholds": {"mode": "absolute", "steps": [{"color": color, "value": at} for at, color in steps]}
    }


def _quantiles(metric: str, *quantiles: float, by: str = "le", where: str = "{}") -> tuple[Query, ...]:
    rates = f"sum by ({by}) (rate({metric}_bucket{where}[$__rate_interval]))"
    return tuple(_query(f"histogram_quantile({each}, {rates})", f"p{100 * each:.0f}") for each in quantiles)


def _rates(metric: str, by: str, where: str = "{}") -> tuple[Query, ...]:
    return (_query(f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))", f"{{{{{by}}}}}"),)


_BATTERY: Final = "sum(meshfleet_devices_battery_bucket{,le='%s.0'})"
_BATTERY_RANGES: Final = ((None, 5), (5, 15), (15, 25), (25, 50), (50, 100))


def _battery_queries() -> tuple[Query, ...]:
    """Return the number of devices in each range of battery levels."""
    return tuple(
        _query(
            (_BATTERY % upper + (f" - {_BATTERY % lower}" if lower else "")).replace("'", '"'),
            f"{lower + 1 if lower else 0}-{upper} %",
        )
        for lower, upper in _BATTERY_RANGES
    )


_AWAY_IN_RED: Final = {
    "matcher": {"id": "byName", "options": "Connected"},
    "properties": [
        {
            "id": "mappings",
            "value": [
                {
                    "type": "value",
                    "options": {
                        "0": {"text": "away", "color": "red", "index": 0},
                        "1": {"text": "connected", "color": "green", "index": 1},
                    },
                }
            ],
        },
        {"id": "custom.cellOptions", "value": {"type": "color-background"}},
    ],
}

_GATEWAY_COLUMNS: Final = {
    "id": "organize",
    "options": {
        "excludeByName": {"Time": True, "__name__": True, "instance": True, "job": True},
        "renameByName": {"Value": "Connected", "gateway": "Gateway", "name": "Name"},
        "indexByName": {"name": 0, "gateway": 1, "Value": 2},
    },
}

FLEET: Final = (
    Panel(
        "Devices connected",
        "stat",
        "short",
        (_query('sum(meshfleet_devices{,connected="true"})'),),
        "Devices that report regularly through a connected gateway.",
        width=4,
        height=4,
    ),
    Panel(
        "Devices silent",
        "stat",
        "short",
        (_query('sum(meshfleet_devices{,connected="false"})'),),
        "Devices that are not connected.",
        width=4,
        height=4,
        fields=_thresholds((None, "green"), (1, "orange")),
    ),
    Panel(
        "Gateways connected",
        "stat",
        "short",
        (_query("sum(meshfleet_gateways_connected{})"),),
        "Gateways that are connected to the broker.",
        width=4,
        height=4,
    ),
    Panel(
        "Reports",
        "stat",
        "cps",
        (_query("sum(rate(meshfleet_reports_total{}[$__rate_interval]))"),),
        "Stored reports per second.",
        width=4,
        height=4,
    ),
    Panel(
        "Samples lost",
        "stat",
        "short",
        (_query('sum(meshfleet_holes{,state="lost"})'),),
        "Gaps in series of samples that will not be filled any more.",
        width=4,
        height=4,
        fields=_thresholds((None, "green"), (1, "red")),
    ),
    Panel(
        "Low batteries",
        "stat",
        "short",
        (_query('sum(meshfleet_devices_battery_bucket{,le="15.0"})'),),
        "Devices with a battery level of 15 % or less.",
        width=4,
        height=4,
        fields=_thresholds((None, "green"), (1, "orange")),
    ),
    Panel(
        "Devices",
        "timeseries",
        "short",
        (
            _query('sum(meshfleet_devices{,connected="true"})', "connected"),
            _query('sum(meshfleet_devices{,connected="false"})', "silent"),
        ),
        "Connected and silent devices.",
        width=12,
    ),
    Panel(
        "Connects and disconnects",
        "timeseries",
        "cps",
        _rates("meshfleet_connectivity_changes_total", "cause"),
        "Devices and gateways that connect or disconnect, by cause.",
        width=12,
    ),
    Panel(
        "Gateways",
        "table",
        "short",
        (_query('meshfleet_gateway_connected{,gateway=~"$gateway"}'),),
        "Empty with the setting metrics.per-gateway off, or with more than 2,000 gateways.",
        width=12,
        overrides=(_AWAY_IN_RED,),
        transformations=(_GATEWAY_COLUMNS,),
    ),
    Panel(
        "Silent devices by gateway",
        "bargauge",
        "short",
        (_query('topk(20, meshfleet_devices_silent{,gateway=~"$gateway"})', "{{gateway}}"),),
        "Gateways with the most silent devices behind them.",
        width=6,
    ),
    Panel(
        "Battery levels",
        "bargauge",
        "short",
        _battery_queries(),
        "Devices by their newest battery level.",
        width=6,
    ),
    Panel(
        "Reports by kind",
        "timeseries",
        "cps",
        _rates("meshfleet_reports_total", "kind"),
        "Stored reports per second.",
    ),
    Panel(
        "Rejected reports",
        "timeseries",
        "cps",
        _rates("meshfleet_rejects_total", "code"),
        "Reports that cannot be understood, by the reason.",
    ),
    Panel(
        "Time until reports are stored",
        "timeseries",
        "s",
        _quantiles("meshfleet_lag_seconds", 0.5, 0.99),
        "Rises if the database is slow.",
    ),
    Panel(
        "Gaps",
        "timeseries",
        "short",
        (_query("sum by (state) (meshfleet_holes{})", "{{state}}"),),
        "Missing samples that were requested again (open), or are not expected any more (lost).",
    ),
    Panel(
        "Requests to devices",
        "timeseries",
        "cps",
        _rates("meshfleet_requests_total", "outcome"),
        "Requests over REST, by outcome.",
    ),
    Panel(
        "Duration of requests to devices",
        "timeseries",
        "s",
        _quantiles(
            "meshfleet_http_request_seconds",
            0.5,
            0.99,
            where='{,method="POST",route="/api/v1/devices/{device_id}/requests"}',
        ),
        "Time until a request over REST is answered.",
    ),
    Panel(
        "Update jobs",
        "timeseries",
        "short",
        (
            _query(
                'sum by (state) (meshfleet_jobs{,state!~"CREATED|COMPLETED|CANCELED|DELETING"})', "{{state}}"
            ),
        ),
        "Jobs that have not ended, by state.",
    ),
    Panel(
        "Devices in update jobs",
        "timeseries",
        "short",
        (_query("sum by (state) (meshfleet_executions{})", "{{state}}"),),
        "Devices of all jobs, by the state of their update.",
    ),
    Panel(
        "Update without progress",
        "timeseries",
        "s",
        (_query("max(meshfleet_job_oldest_waiting_seconds{})", "longest"),),
        "Time for which no running update of a job has made progress.",
    ),
    Panel(
        "MQTT clients",
        "timeseries",
        "short",
        (
            _query("sum(meshfleet_mqtt_connections{})", "connected"),
            _query("sum(meshfleet_mqtt_sessions{})", "sessions"),
        ),
        "Clients of the embedded broker, and sessions including those of disconnected clients.",
    ),
    Panel(
        "Dropped MQTT messages",
        "timeseries",
        "cps",
        _rates("meshfleet_mqtt_dropped_total", "reason"),
        "Messages that were not delivered. Messages for absent clients are normal.",
    ),
    Panel(
        "Gateway clocks",
        "timeseries",
        "s",
        (_query("max(meshfleet_clock_offset_max_seconds{})", "largest offset"),),
        "How far the clock of a gateway is off.",
    ),
    Panel(
        "Disk",
        "timeseries",
        "bytes",
        (
            _query("sum by (part) (meshfleet_data_bytes{})", "{{part}}"),
            _query("sum(meshfleet_disk_free_bytes{})", "free"),
            _query("sum(predict_linear(meshfleet_disk_free_bytes{}[1d], 7 * 86400))", "free in 7 days"),
        ),
        "Size of the data, and free space now and as the last day lets expect.",
        width=16,
    ),
    Panel(
        "Disk full in",
        "stat",
        "s",
        (_query("min(meshfleet_disk_full_timestamp_seconds{} - time())"),),
        "Forecast of Meshfleet, which knows when samples are deleted. Empty if that is not foreseen.",
        fields=_thresholds((None, "red"), (7 * 86_400, "green")),
    ),
)

SERVICE: Final = (
    Panel(
        "Not ready",
        "stat",
        "short",
        (_query("sum(meshfleet_not_ready{})"),),
        "Number of reasons why the service is not ready.",
        width=4,
        height=4,
        fields=_thresholds((None, "green"), (1, "red")),
    ),
    Panel(
        "Backup age",
        "stat",
        "s",
        (_query("max(time() - meshfleet_backup_timestamp_seconds{})"),),
        "Age of the newest checked backup with samples. Empty if there is none.",
        width=4,
        height=4,
        fields=_thresholds((None, "green"), (8 * 86_400, "red")),
    ),
    Panel(
        "Certificate",
        "stat",
        "s",
        (_query("min(meshfleet_certificate_end_timestamp_seconds{} - time())"),),
        "Time until the certificate ends. Empty without TLS.",
        width=4,
        height=4,
        fields=_thresholds((None, "red"), (3 * 86_400, "orange"), (14 * 86_400, "green")),
    ),
    Panel(
        "Running for",
        "stat",
        "s",
        (_query("min(time() - process_start_time_seconds{})"),),
        "Time since the service was started.",
        width=4,
        height=4,
    ),
    Panel(
        "Version",
        "stat",
        "short",
        (_query("meshfleet_build_info{}", "{{version}}, {{database}}"),),
        "Version of Meshfleet, and its database.",
        width=4,
        height=4,
    ),
    Panel(
        "Defects",
        "stat",
        "short",
        (_query("sum(meshfleet_following_failures_total{})"),),
        "Stored reports that a part of Meshfleet failed to process. The log has the details.",
        width=4,
        height=4,
        fields=_thresholds((None, "green"), (1, "red")),
    ),
    Panel(
        "CPU",
        "timeseries",
        "percentunit",
        (_query("rate(process_cpu_seconds_total{}[$__rate_interval])", "{{instance}}"),),
        "100 % is one core.",
    ),
    Panel(
        "Memory",
        "timeseries",
        "bytes",
        (_query("process_resident_memory_bytes{}", "{{instance}}"),),
        "Resident memory of the process.",
    ),
    Panel(
        "Open files",
        "timeseries",
        "short",
        (_query("process_open_fds{}", "open"), _query("process_max_fds{}", "limit")),
        "File descriptors: each connection needs one.",
    ),
    Panel(
        "HTTP requests",
        "timeseries",
        "reqps",
        _rates("meshfleet_http_request_seconds_count", "status"),
        "Completed HTTP requests, by status.",
    ),
    Panel(
        "Slowest routes",
        "timeseries",
        "s",
        (
            Query(
                f"topk(10, {_quantiles('meshfleet_http_request_seconds', 0.99, by='le, route')[0].text})",
                "{{route}}",
            ),
        ),
        "99 % of requests are faster.",
    ),
    Panel(
        "Logins",
        "timeseries",
        "cps",
        _rates("meshfleet_logins_total", "outcome"),
        "Logins with a password, by outcome.",
    ),
    Panel(
        "Live events",
        "timeseries",
        "cps",
        (
            *_rates("meshfleet_live_events_total", "type"),
            _query("sum(rate(meshfleet_live_resyncs_total{}[$__rate_interval]))", "resyncs"),
        ),
        "Published events by type, and how often a subscriber missed some.",
    ),
    Panel(
        "Live subscribers",
        "timeseries",
        "short",
        (_query("sum by (door) (meshfleet_live_listeners{})", "{{door}}"),),
        "Browsers and programs that receive live events.",
    ),
    Panel(
        "MQTT queues",
        "timeseries",
        "bytes",
        (_query("sum(meshfleet_mqtt_owed_bytes{})", "queued"),),
        "Bytes that wait for MQTT clients.",
    ),
    Panel(
        "MQTT messages",
        "timeseries",
        "cps",
        (
            _query("sum(rate(meshfleet_mqtt_received_total{}[$__rate_interval]))", "received"),
            _query("sum(rate(meshfleet_mqtt_delivered_total{}[$__rate_interval]))", "delivered"),
        ),
        "Messages of MQTT clients.",
    ),
    Panel(
        "MQTT connections refused",
        "timeseries",
        "cps",
        (
            _query("sum(rate(meshfleet_mqtt_refused_total{}[$__rate_interval]))", "refused"),
            _query("sum(rate(meshfleet_mqtt_turned_away_total{}[$__rate_interval]))", "limit reached"),
            _query("sum(rate(meshfleet_mqtt_cut_off_total{}[$__rate_interval]))", "too slow"),
        ),
        "Clients that were refused at CONNECT, came while a limit was reached, or read too slowly.",
    ),
    Panel(
        "Requests under way",
        "timeseries",
        "short",
        (
            _query("sum(meshfleet_requests_pending{})", "pending"),
            _query("sum(meshfleet_requests_queued{})", "queued"),
        ),
        "Requests to devices that wait for their responses, and those that are not sent yet.",
    ),
    Panel(
        "Database",
        "timeseries",
        "bytes",
        (_query('meshfleet_data_bytes{,part="database"}', "{{instance}}"),),
        "Size of the database without samples and images.",
    ),
    Panel(
        "Integrations: queue",
        "timeseries",
        "short",
        (_query("sum by (name) (meshfleet_integration_queue{})", "{{name}}"),),
        "Items that wait to be sent. Empty without integrations.",
    ),
    Panel(
        "Integrations: failures",
        "timeseries",
        "cps",
        _rates("meshfleet_integration_failures_total", "name"),
        "Failed attempts to send. Empty without integrations.",
    ),
)

# The function reads only the days of its time range; the view of the same name would read all days.
_OF_DEVICE: Final = (
    "FROM meshfleet_read.sample($__timeFrom(), $__timeTo()) WHERE device = ${device:sqlstring}"
)

DEVICE: Final = (
    Panel(
        "Newest values",
        "table",
        "short",
        (
            Query(
                f"SELECT DISTINCT ON (kind, identifier) identifier, kind, time, value, text {_OF_DEVICE}"
                " ORDER BY kind, identifier, time DESC"
            ),
        ),
        "Newest sample of each identifier in the selected time.",
        width=12,
    ),
    Panel(
        "Events and texts",
        "table",
        "short",
        (
            Query(
                f"SELECT time, kind, identifier, text {_OF_DEVICE} AND text IS NOT NULL"
                " ORDER BY time DESC LIMIT 200"
            ),
        ),
        "Newest samples that are no numbers.",
        width=12,
    ),
    Panel(
        "Samples",
        "timeseries",
        "short",
        (
            Query(
                f"SELECT $__timeGroupAlias(time, '1h'), kind AS metric, count(*) AS value {_OF_DEVICE}"
                " GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        "Samples per hour, by kind.",
        width=24,
    ),
    Panel(
        "$identifier",
        "timeseries",
        "short",
        (
            Query(
                "SELECT $__timeGroupAlias(time, $__interval), identifier AS metric, avg(value) AS value"
                f" {_OF_DEVICE} AND identifier = ${{identifier:sqlstring}} AND value IS NOT NULL"
                " GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        "Average of the samples in each interval.",
        width=24,
        repeat="identifier",
    ),
)

_JOB: Final = Variable("job", "Job", "label_values(meshfleet_build_info, job)")

_GATEWAY: Final = Variable(
    "gateway", "Gateway", 'label_values(meshfleet_gateway_connected{job=~"$job"}, gateway)'
)

_DEVICE_VARIABLES: Final = (
    Variable(
        "device",
        "Device",
        "SELECT DISTINCT name AS __text, device AS __value"
        " FROM meshfleet_read.sample(now() - interval '1 hour', now()) ORDER BY 1",
        is_multiple=False,
    ),
    Variable(
        "identifier",
        "Identifier",
        f"SELECT DISTINCT identifier {_OF_DEVICE} AND value IS NOT NULL ORDER BY 1",
    ),
)


def _build_dashboard(
    name: str, title: str, panels: tuple[Panel, ...], variables: tuple[Variable, ...], source: str
) -> dict[str, Any]:
    return {
        "uid": f"meshfleet-{name}",
        "title": title,
        "tags": ["meshfleet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [_build_source_variable(source), *(_build_variable(each, source) for each in variables)]
        },
        "panels": _build_panels(panels, source),
    }


def _build_source_variable(source: str) -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": source}


def _build_variable(variable: Variable, source: str) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _refer_to(source),
        "query": variable.query,
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": variable.is_multiple,
        "includeAll": variable.is_multiple,
        # With PromQL, "all" also includes series without the label.
        **({"allValue": ".*"} if source == _PROMETHEUS else {}),
    }


def _refer_to(source: str) -> dict[str, str]:
    return {"type": source, "uid": "${datasource}"}


def _build_panels(panels: tuple[Panel, ...], source: str) -> list[dict[str, Any]]:
    """Place the panels from left to right, in rows of panels of equal height."""
    built: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + built[-1]["gridPos"]["h"]
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        built.append(_build_panel(number, panel, place, source))
        x += panel.width
    return built


def _build_panel(number: int, panel: Panel, place: dict[str, int], source: str) -> dict[str, Any]:
    return {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "gridPos": place,
        "datasource": _refer_to(source),
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **panel.fields},
            "overrides": list(panel.overrides),
        },
        "options": _build_options(panel),
        "targets": [
            _build_target(chr(ord("A") + index), panel, query, source)
            for index, query in enumerate(panel.queries)
        ],
        **({"transformations": list(panel.transformations)} if panel.transformations else {}),
        **({"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": 2} if panel.repeat else {}),
    }


def _build_options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        text_mode = "name" if panel.queries[0].legend else "auto"
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": text_mode}
    if panel.kind == "bargauge":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}
    return {}


def _build_target(name: str, panel: Panel, query: Query, source: str) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": name, "datasource": _refer_to(source)}
    if source == _POSTGRESQL:
        form = "time_series" if panel.kind == "timeseries" else "table"
        return {**target, "rawQuery": True, "rawSql": query.text, "format": form}
    if panel.kind != "timeseries":
        target |= {"instant": True, "format": "table" if panel.kind == "table" else "time_series"}
    return {**target, "expr": query.text, "legendFormat": query.legend or "__auto"}


def build_dashboards() -> dict[str, str]:
    """Return the text of each dashboard by the name of its file."""
    dashboards = {
        "device": _build_dashboard("device", "Meshfleet device", DEVICE, _DEVICE_VARIABLES, _POSTGRESQL),
        "fleet": _build_dashboard("fleet", "Meshfleet fleet", FLEET, (_JOB, _GATEWAY), _PROMETHEUS),
        "service": _build_dashboard("service", "Meshfleet service", SERVICE, (_JOB,), _PROMETHEUS),
    }
    return {
        f"{name}.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in dashboards.items()
    }


if __name__ == "__main__":
    for name, text in build_dashboards().items():
        (FOLDER / name).write_text(text, "utf-8")
