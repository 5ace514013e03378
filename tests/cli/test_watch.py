"""`meshfleet watch`: live reports of a service and of a broker."""

from __future__ import annotations

import json
import re
import socket
import time
from signal import SIGINT
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import to_device_id
from meshfleet.testing import emulated_gateway
from tests.cli.programs import TEST_TIMEOUT, Program, broker_url
from tests.cli.shell import Shell, run_at_terminal
from tests.row_tables import each_row
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.testing import RunningFleet

PLAIN = re.compile(r"\S+Z  bmac-[0-9a-f]{12}  [a-z-]+ +  \S.*\n")


def watch_json(shell: Shell, *arguments: str) -> list[Any]:
    """Run `watch --json` until it ends, and return the reports."""
    with shell.start("watch", "--json", *arguments) as program:
        code, output, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(params=["service", "broker"])
def flags(request: pytest.FixtureRequest, service: RunningFleet) -> list[str]:
    return [] if request.param == "service" else ["--broker", service.broker]


def test_watch_ends_after_a_number_of_reports(admin: Shell, flags: list[str]) -> None:
    with admin.start("watch", "--count", "5", *flags) as program:
        code, output, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    lines = output.splitlines(keepends=True)
    assert len(lines) == 5
    assert all(map(PLAIN.fullmatch, lines))
    assert "\x1b" not in output


def test_service_and_broker_give_the_same_json_fields(admin: Shell, service: RunningFleet) -> None:
    flags = ["--kind", "measurement", "--identifier", "8800", "--count", "1"]
    (from_service,), (from_broker,) = (
        watch_json(admin, *flags),
        watch_json(admin, *flags, "--broker", service.broker),
    )
    assert from_service.keys() == from_broker.keys()
    for each in (from_service, from_broker):
        assert (each["kind"], each["identifier"], each["name"]) == ("measurement", "8800", "temperature")
        assert isinstance(each["value"], float | int)
        assert re.fullmatch("[0-9a-f]{4,}", each["raw"])


def test_filters_select_reports(admin: Shell, service: RunningFleet, flags: list[str]) -> None:
    gateway, (first, second, *_) = service.gateways[0].mac, service.gateways[0].devices
    filters = ["--device", first, "--device", second, "--kind", "heartbeat", "--gateway", gateway]
    found = watch_json(admin, *filters, "--count", "3", *flags)
    assert {each["kind"] for each in found} == {"heartbeat"}
    assert {each["device"] for each in found} <= {to_device_id(first), to_device_id(second)}
    named = watch_json(admin, "--identifier", "temperature", "--identifier", "8813", "--count", "3", *flags)
    assert {each["name"] for each in named} <= {"temperature", "total-minutes-in-motion"}
    assert watch_json(admin, "--gateway", "02005e00f001", "--seconds", "3", *flags) == []


def test_values_are_shown_with_their_units(admin: Shell, flags: list[str]) -> None:
    with admin.start("watch", "--count", "1", "--identifier", "temperature", *flags) as program:
        assert re.search(r"  temperature  -?[0-9.]+ °C", program.wait_for_exit()[1])
    with admin.start("watch", "--count", "1", "--kind", "rssi", *flags) as program:
        assert re.search(r"  rssi +-\d+ dBm at [0-9a-f]{12}", program.wait_for_exit()[1])


def test_ctrl_c_ends_watch_with_exit_code_0(admin: Shell, flags: list[str]) -> None:
    with admin.start("watch", *flags) as program:
        program.read_line()
        code, _, errors = program.wait_for_exit(SIGINT)
    assert (code, errors) == (0, "")


def test_a_terminal_shows_colors(admin: Shell, service: RunningFleet) -> None:
    shown, code = run_at_terminal(admin, "watch", "--count", "1", "--broker", service.broker)
    assert (code, "\x1b[" in shown) == (0, True)


@each_row(
    "arguments",
    [
        ["--count", "0"],
        ["--seconds", "0"],
        ["--kind", "thing"],
        ["--device", "x"],
        ["--broker", "x"],
        ["more"],
    ],
)
def test_wrong_usage_is_exit_code_2(logged_out: Shell, arguments: list[str]) -> None:
    logged_out.expect_failure("watch", *arguments, code=2)


def test_an_unreachable_service_or_broker_is_reported(logged_out: Shell) -> None:
    for arguments in ([], ["--broker", "mqtt://127.0.0.1:1"]):
        with logged_out.start("watch", *arguments) as program:
            code, output, errors = program.wait_for_exit()
        assert (code, output, len(errors.splitlines())) == (1, "", 1), errors


def test_a_timeout_before_the_connection_is_an_error(logged_out: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        logged_out.write_login(
            json.dumps({"url": f"http://127.0.0.1:{port}", "user": "ada", "token": "a.b.c"})
        )
        for arguments in ([], ["--broker", f"mqtt://127.0.0.1:{port}"]):
            with logged_out.start("watch", "--seconds", "0.5", *arguments) as program:
                code, output, errors = program.wait_for_exit()
            assert (code, output) == (1, "")
            assert "no connection within 0.5 s" in errors


def test_an_api_key_of_a_viewer_is_sufficient(admin: Shell, service: RunningFleet) -> None:
    key = admin.json("keys", "add", "watching", "--role", "viewer")["key"]
    with admin.start("watch", "--count", "1", MESHFLEET_URL=service.url, MESHFLEET_TOKEN=key) as program:
        assert program.wait_for_exit()[0] == 0


# --- Reconnects ---


def wait_for_report_after(program: Program, moment: str) -> None:
    """Read until there is a report with a later time."""
    until = time.monotonic() + TEST_TIMEOUT
    while json.loads(program.read_line())["time"] <= moment:
        assert time.monotonic() < until, "no new reports"


def test_watch_survives_a_restart_of_the_broker_and_reports_it(logged_out: Shell, tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        emulated_gateway(speed=60, broker=broker_url(broker)),
        logged_out.start("watch", "--json", "--broker", broker_url(broker)) as program,
    ):
        program.read_line()
        broker.stop()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime())
        broker.start()
        wait_for_report_after(program, moment)
        code, _, errors = program.wait_for_exit(SIGINT)
    lost, reconnected = errors.splitlines()
    assert code == 0
    assert "has no connection" in lost
    assert "has a connection again" in reconnected


def test_watch_survives_a_restart_of_the_service_and_reports_missing_reports(
    logged_out: Shell, tmp_path: Path
) -> None:
    http, mqtt = free_port(), free_port()
    serve = ["serve", "--json", "--http", f"127.0.0.1:{http}", "--data", str(tmp_path / "data")]
    variables = {"MESHFLEET_ADMIN_PASSWORD": "correct-horse", "MESHFLEET_MQTT": f"127.0.0.1:{mqtt}"}
    with Program(*serve, **variables) as service:
        service.read_line()
        options = ["--url", f"http://127.0.0.1:{http}", "--user", "admin"]
        logged_out.text("login", *options, MESHFLEET_PASSWORD="correct-horse")  # noqa: S106 # not a real secret
        claim = logged_out.json("gateways", "add", "02005e000001")
        gateway = f"mqtt://02005e000001:{claim['password']}@127.0.0.1:{mqtt}"
        with (
            emulated_gateway(speed=60, broker=gateway),
            logged_out.start("watch", "--json") as program,
        ):
            program.read_line()
            service.wait_for_exit(SIGINT)
            moment = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime())
            with Program(*serve, **variables) as restarted_service:
                restarted_service.read_line()
                wait_for_report_after(program, moment)
                code, _, errors = program.wait_for_exit(SIGINT)
    assert code == 0
    assert "some reports are missing: " in errors
