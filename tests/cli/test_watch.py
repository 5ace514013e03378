"""Live reports at the command line."""

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


def seen(shell: Shell, *arguments: str) -> list[Any]:
    """Watch as a program does."""
    with shell.start("watch", "--json", *arguments) as program:
        code, said, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    return [json.loads(line) for line in said.splitlines()]


@pytest.fixture(params=["service", "broker"])
def flags(request: pytest.FixtureRequest, place: RunningFleet) -> list[str]:
    return [] if request.param == "service" else ["--broker", place.broker]


def test_reports_are_shown_as_they_come_until_there_are_enough(admin: Shell, flags: list[str]) -> None:
    with admin.start("watch", "--count", "5", *flags) as program:
        code, said, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    lines = said.splitlines(keepends=True)
    assert len(lines) == 5
    assert all(map(PLAIN.fullmatch, lines))
    assert "\x1b" not in said


def test_programs_get_the_same_both_ways(admin: Shell, place: RunningFleet) -> None:
    flags = ["--kind", "measurement", "--identifier", "8800", "--count", "1"]
    (one,), (other,) = seen(admin, *flags), seen(admin, *flags, "--broker", place.broker)
    assert one.keys() == other.keys()
    for each in (one, other):
        assert (each["kind"], each["identifier"], each["name"]) == ("measurement", "8800", "temperature")
        assert isinstance(each["value"], float | int)
        assert re.fullmatch("[0-9a-f]{4,}", each["raw"])


def test_filters_choose_what_is_shown(admin: Shell, place: RunningFleet, flags: list[str]) -> None:
    gateway, (first, second, *_) = place.gateways[0].mac, place.gateways[0].devices
    chosen = ["--device", first, "--device", second, "--kind", "heartbeat", "--gateway", gateway]
    found = seen(admin, *chosen, "--count", "3", *flags)
    assert {each["kind"] for each in found} == {"heartbeat"}
    assert {each["device"] for each in found} <= {to_device_id(first), to_device_id(second)}
    named = seen(admin, "--identifier", "temperature", "--identifier", "8813", "--count", "3", *flags)
    assert {each["name"] for each in named} <= {"temperature", "total-minutes-in-motion"}
    assert seen(admin, "--gateway", "02005e00f001", "--seconds", "3", *flags) == []


def test_values_are_shown_with_their_units(admin: Shell, flags: list[str]) -> None:
    with admin.start("watch", "--count", "1", "--identifier", "temperature", *flags) as program:
        assert re.search(r"  temperature  -?[0-9.]+ °C", program.wait_for_exit()[1])
    with admin.start("watch", "--count", "1", "--kind", "rssi", *flags) as program:
        assert re.search(r"  rssi +-\d+ dBm at [0-9a-f]{12}", program.wait_for_exit()[1])


def test_ctrl_c_ends_it_well(admin: Shell, flags: list[str]) -> None:
    with admin.start("watch", *flags) as program:
        program.read_line()
        code, _, errors = program.wait_for_exit(SIGINT)
    assert (code, errors) == (0, "")


def test_a_terminal_shows_colours(admin: Shell, place: RunningFleet) -> None:
    shown, code = run_at_terminal(admin, "watch", "--count", "1", "--broker", place.broker)
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
def test_wrong_usage_is_exit_code_2(nobody: Shell, arguments: list[str]) -> None:
    nobody.expect_failure("watch", *arguments, code=2)


def test_what_cannot_be_reached_is_told(nobody: Shell) -> None:
    for arguments in ([], ["--broker", "mqtt://127.0.0.1:1"]):
        with nobody.start("watch", *arguments) as program:
            code, said, errors = program.wait_for_exit()
        assert (code, said, len(errors.splitlines())) == (1, "", 1), errors


def test_the_end_of_its_time_before_anybody_answers_is_told(nobody: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        nobody.write_login(json.dumps({"url": f"http://127.0.0.1:{port}", "user": "ada", "token": "a.b.c"}))
        for arguments in ([], ["--broker", f"mqtt://127.0.0.1:{port}"]):
            with nobody.start("watch", "--seconds", "0.5", *arguments) as program:
                code, said, errors = program.wait_for_exit()
            assert (code, said) == (1, "")
            assert "nobody answered within 0.5 s" in errors


def test_a_key_of_a_viewer_is_enough(admin: Shell, place: RunningFleet) -> None:
    key = admin.json("keys", "add", "watching", "--role", "viewer")["key"]
    with admin.start("watch", "--count", "1", MESHFLEET_URL=place.url, MESHFLEET_TOKEN=key) as program:
        assert program.wait_for_exit()[0] == 0


# --- When connections come and go ---


def next_after(program: Program, moment: str) -> None:
    """Read on until a report of a later time comes."""
    until = time.monotonic() + TEST_TIMEOUT
    while json.loads(program.read_line())["time"] <= moment:
        assert time.monotonic() < until, "nothing new comes"


def test_it_survives_the_end_of_a_broker_and_says_so(nobody: Shell, tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        emulated_gateway(speed=60, broker=broker_url(broker)),
        nobody.start("watch", "--json", "--broker", broker_url(broker)) as program,
    ):
        program.read_line()
        broker.stop()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime())
        broker.start()
        next_after(program, moment)
        code, _, errors = program.wait_for_exit(SIGINT)
    lost, again = errors.splitlines()
    assert code == 0
    assert "has no connection" in lost
    assert "has a connection again" in again


def test_it_survives_the_end_of_a_service_and_says_what_was_missed(nobody: Shell, tmp_path: Path) -> None:
    http, mqtt = free_port(), free_port()
    serve = ["serve", "--json", "--http", f"127.0.0.1:{http}", "--data", str(tmp_path / "data")]
    known = {"MESHFLEET_ADMIN_PASSWORD": "correct-horse", "MESHFLEET_MQTT": f"127.0.0.1:{mqtt}"}
    with Program(*serve, **known) as service:
        service.read_line()
        at = ["--url", f"http://127.0.0.1:{http}", "--user", "admin"]
        nobody.text("login", *at, MESHFLEET_PASSWORD="correct-horse")  # noqa: S106 # it is made here
        claim = nobody.json("gateways", "add", "02005e000001")
        gateway = f"mqtt://02005e000001:{claim['password']}@127.0.0.1:{mqtt}"
        with (
            emulated_gateway(speed=60, broker=gateway),
            nobody.start("watch", "--json") as program,
        ):
            program.read_line()
            service.wait_for_exit(SIGINT)
            moment = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime())
            with Program(*serve, **known) as service_again:
                service_again.read_line()
                next_after(program, moment)
                code, _, errors = program.wait_for_exit(SIGINT)
    assert code == 0
    assert "some reports were missed: " in errors
