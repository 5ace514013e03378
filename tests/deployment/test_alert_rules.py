"""Alert rules with promtool: each alert fires and clears on invented time series."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.deployment.monitoring_files import ALERTS, FILES, load_alert_rules
from tests.external_tools import PROMTOOL, require

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.part("monitoring")


class Case(NamedTuple):
    """Time series, with one value per minute, and whether an alert fires after some of the minutes."""

    alert: str
    severity: str
    series: dict[str, str]
    firing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


def _day(day: float) -> str:
    return str(round(day * 86_400))


CASES = [
    Case("Down", "critical", {'up{job="meshfleet"}': "1x4 0x4 1x9"}, (8, 9), (4, 6, 10)),
    Case("Down", "critical", {'up{job="other"}': "0x9"}, (), (9,)),
    Case("NotReady", "critical", {'meshfleet_not_ready{code="disk-full"}': "0x4 1x4 0x9"}, (8,), (4, 6, 10)),
    Case("NotReady", "critical", {'meshfleet_not_ready{code="draining"}': "1x9"}, (), (9,)),
    Case(
        "Lagging",
        "warning",
        {
            'meshfleet_lag_seconds_bucket{le="1"}': "0+0x20 0+100x20",
            'meshfleet_lag_seconds_bucket{le="5"}': "0+100x20 2100+100x20",
            'meshfleet_lag_seconds_bucket{le="+Inf"}': "0+100x20 2100+100x20",
        },
        (10, 20),
        (4, 40),
    ),
    Case("FollowingFailure", "critical", {"meshfleet_following_failures_total": "0x9 1x30"}, (11,), (9, 30)),
    Case(
        "MqttDropped",
        "warning",
        {
            'meshfleet_mqtt_dropped_total{reason="session-full"}': "0x4 1+1x14 15x30",
            'meshfleet_mqtt_dropped_total{reason="absent"}': "0+10x60",
        },
        (18, 20),
        (4, 12, 45),
    ),
    Case(
        "LoginsFailing",
        "warning",
        {
            'meshfleet_logins_total{outcome="failed"}': "0+3x20 60x30",
            'meshfleet_logins_total{outcome="succeeded"}': "0+50x50",
        },
        (18, 22),
        (5, 40),
    ),
    Case("LoginsFailing", "warning", {'meshfleet_logins_total{outcome="failed"}': "0+1x50"}, (), (40,)),
    Case(
        "DiskFullSoon",
        "warning",
        {"meshfleet_disk_full_timestamp_seconds": f"{_day(6)}x90 {_day(60)}x20"},
        (70, 90),
        (59, 95),
    ),
    Case("DiskFullSoon", "warning", {"meshfleet_disk_free_bytes": "2e9x90 3e9x9"}, (70,), (59, 95)),
    Case(
        "DiskFullSoon",
        "critical",
        {"meshfleet_disk_full_timestamp_seconds": f"{_day(2)}x20 {_day(6)}x20"},
        (10,),
        (4, 30),
    ),
    Case("DiskFullSoon", "critical", {"meshfleet_disk_free_bytes": "5e8x9 1e9x9"}, (8,), (4, 15)),
    Case(
        "BackupOld",
        "warning",
        {"meshfleet_backup_timestamp_seconds": f"-{_day(7.99)}x40 0x20"},
        (35, 40),
        (10, 50),
    ),
    Case(
        "BackupOld",
        "warning",
        {
            "meshfleet_backup_timestamp_seconds": f"-{_day(1.08)}x40 0x20",
            "meshfleet_backup_interval_seconds": f"{_day(1)}x60",
        },
        (35, 40),
        (10, 50),
    ),
    Case(
        "BackupOld",
        "warning",
        {
            "meshfleet_backup_timestamp_seconds": f"-{_day(2)}x40",
            "meshfleet_backup_interval_seconds": f"{_day(7)}x40",
        },
        (),
        (40,),
    ),
    Case(
        "CertificateEnds",
        "warning",
        {'meshfleet_certificate_end_timestamp_seconds{use="server"}': f"{_day(13)}x20 {_day(90)}x20"},
        (15,),
        (9, 30),
    ),
    Case(
        "CertificateEnds",
        "critical",
        {'meshfleet_certificate_end_timestamp_seconds{use="server"}': f"{_day(2)}x20 {_day(13)}x20"},
        (15,),
        (9, 30),
    ),
    Case(
        "IntegrationFailing",
        "warning",
        {'meshfleet_integration_failures_total{name="influx"}': "0x4 1+1x25 26x40"},
        (25, 40),
        (4, 15, 65),
    ),
    Case(
        "GatewayAway",
        "critical",
        {'meshfleet_gateway_connected{gateway="02005e000001",name="Office"}': "1x4 0x10 1x9"},
        (11, 14),
        (4, 9, 17),
    ),
    Case(
        "ManyDevicesSilent",
        "warning",
        {
            'meshfleet_devices{connected="false"}': "5x1500 20x60 6x60",
            'meshfleet_devices{connected="true"}': "95x1500 80x60 94x60",
        },
        (1520, 1560),
        (1500, 1510, 1570),
    ),
    Case(
        "RejectsRising",
        "warning",
        {
            'meshfleet_rejects_total{code="payload"}': "0x4 0+2x30 60x30",
            'meshfleet_reports_total{kind="property"}': "0+100x70",
        },
        (25, 34),
        (4, 12, 50),
    ),
    Case(
        "RejectsRising",
        "warning",
        {
            'meshfleet_rejects_total{code="payload"}': "0+2x40",
            'meshfleet_reports_total{kind="property"}': "0+1000x40",
        },
        (),
        (40,),
    ),
    Case("SamplesLost", "warning", {'meshfleet_holes{state="lost"}': "3x60 5x120"}, (62, 115), (60, 130)),
    Case("SamplesLost", "warning", {'meshfleet_holes{state="open"}': "3x60 5x120"}, (), (62,)),
    Case(
        "BatteryLow",
        "info",
        {'meshfleet_devices_battery_bucket{le="15.0"}': "1x400 0x20"},
        (365,),
        (350, 410),
    ),
    Case("BatteryLow", "info", {'meshfleet_devices_battery_bucket{le="25.0"}': "1x400"}, (), (400,)),
    Case("JobStuck", "warning", {"meshfleet_job_oldest_waiting_seconds": "3000+60x30 0x20"}, (20,), (12, 40)),
]


def _promtool(*arguments: str) -> str:
    command = [str(require(PROMTOOL)), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_rules_are_valid() -> None:
    assert f"{len(load_alert_rules())} rules found" in _promtool("check", "rules", str(ALERTS))


@pytest.mark.parametrize("name", ["prometheus/prometheus.yml", "container/prometheus.yml"])
def test_the_configuration_is_valid(name: str, tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text((FILES / name).read_text("utf-8"), "utf-8")
    (tmp_path / "alerts.yml").write_bytes(ALERTS.read_bytes())
    (tmp_path / "meshfleet.key").write_text("mfk_", "utf-8")
    assert f"{len(load_alert_rules())} rules found" in _promtool("check", "config", str(config))


def test_every_alert_fires_and_clears(tmp_path: Path) -> None:
    rules = {(rule["alert"], rule["labels"]["severity"]) for rule in load_alert_rules()}
    assert {(case.alert, case.severity) for case in CASES if case.firing and case.silent} == rules
    file = tmp_path / "tests.json"  # JSON is YAML too
    content = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [_build_test(case) for case in CASES],
    }
    file.write_text(json.dumps(content), "utf-8")
    assert "SUCCESS" in _promtool("test", "rules", str(file))


def _build_test(case: Case) -> dict[str, Any]:
    labels = f'alertname="{case.alert}",severity="{case.severity}",alertstate="firing"'
    expression = f"count(ALERTS{{{labels}}})"
    expected = [
        *((minute, [{"labels": "{}", "value": 1}]) for minute in case.firing),
        *((minute, []) for minute in case.silent),
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}
            for minute, samples in expected
        ],
    }
