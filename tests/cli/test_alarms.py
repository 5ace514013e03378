"""`meshfleet alarms`, with a service whose gateway and device have failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.shell import Shell
from tests.databases import fresh_database
from tests.service.alarms.alarm_harness import MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

from meshfleet.rest.accounts import Role


@pytest.fixture(scope="module")
def failing(request: pytest.FixtureRequest) -> Iterator[tuple[RunningService, PresenceLog]]:
    """Run a service in which a gateway and a device behind another gateway are offline."""
    with run_service(fresh_database(request, "sqlite")) as service:
        log = PresenceLog(service.database)
        log.add_gateway(1, 3)
        lost, devices = log.add_gateway(2, 2)
        office, others = log.add_gateway(3, 2)
        log.set_gateway(lost, connected=False)
        log.change(*devices, connected=False, cause=log.WITH_GATEWAY, gateway=lost)
        log.set_device(others[0], office, connected=False)
        log.run(11 * MINUTE)
        yield service, log


@pytest.fixture
def operator(failing: tuple[RunningService, PresenceLog], tmp_path: Path) -> Shell:
    service, _ = failing
    shell = Shell(tmp_path / "home")
    user = service.new_user(Role.OPERATOR)
    shell.text("login", "--url", service.url, "--user", user, MESHFLEET_PASSWORD=PASSWORD)
    return shell


def test_alarms_are_listed_shown_and_acknowledged(operator: Shell) -> None:
    listed = operator.json_lines("alarms", "list")
    assert [each["severity"] for each in listed] == ["critical", "warning"]
    lines = operator.text("alarms", "list", "--severity", "critical").splitlines()
    assert "Gateway 2 is offline" in " ".join(lines)
    assert operator("alarms", "list", "--exit-code").exit_code == 1
    assert operator("alarms", "list", "--rule", "device-offline", "--exit-code").exit_code == 0
    number = listed[0]["id"].removeprefix("alarm-")
    shown = operator.text("alarms", "show", number)
    assert shown.startswith(
        "Gateway Gateway 2 is offline. 2 devices are cut off with it.\nWhat to do: Check its"
    )
    assert "Gateway 2" in operator.text("alarms", "members", number)
    acknowledged = operator.text("alarms", "ack", number, "--note", "On my way")
    assert acknowledged.startswith(f"alarm-{number} is acknowledged: Gateway Gateway 2 is offline.")
    events = operator.json_lines("alarms", "events", number)
    assert [each["kind"] for each in events] == ["note", "acknowledged", "opened"]
    assert operator.json_lines("alarms", "list", "--state", "acknowledged")[0]["id"] == listed[0]["id"]
    assert operator.json("alarms", "ack", number, "--undo")["state"] == "open"
    assert operator.json_lines(
        "alarms", "list", "--from", "2020-01-01T00:00:00Z", "--gateway", "02005e000003"
    )
    assert "not an alarm id" in operator.expect_failure("alarms", "show", "job-1", code=2)
    assert "alarm-99" in operator.expect_failure("alarms", "show", "99")
