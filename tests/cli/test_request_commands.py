"""Requests from the command line: through the service, and straight at a broker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import certifi
import pytest

from meshfleet.testing import emulated_gateway
from tests.cli.shell import Shell, run_at_terminal
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.testing import EmulatedGateway, RunningFleet

SOON = "2026-11-15T09:11:55.605Z"


class RequestPath(NamedTuple):
    """One of the ways to a gateway."""

    shell: Shell
    flags: list[str]
    gateway: str
    devices: tuple[str, ...]
    is_direct: bool


@pytest.fixture(scope="module")
def alone() -> Iterator[EmulatedGateway]:
    """A gateway on a broker without any service, below a prefix."""
    with emulated_gateway(devices=10, speed=60, prefix="site/7") as running:
        yield running


@pytest.fixture(params=["service", "broker"])
def way(request: pytest.FixtureRequest, nobody: Shell) -> RequestPath:
    if request.param == "service":
        place: RunningFleet = request.getfixturevalue("place")
        shell: Shell = request.getfixturevalue("admin")
        return RequestPath(shell, [], place.gateways[0].mac, place.gateways[0].devices, is_direct=False)
    alone: EmulatedGateway = request.getfixturevalue("alone")
    flags = ["--broker", alone.broker, "--topic-prefix", alone.prefix]
    return RequestPath(nobody, flags, alone.mac, alone.devices, is_direct=True)


def through(way: RequestPath) -> list[str]:
    return [*way.flags, "--gateway", way.gateway] if way.is_direct else []


# --- Reading and writing ---


def test_a_property_is_read_by_its_name_with_its_unit(way: RequestPath) -> None:
    said, answered = way.shell.text("read", way.devices[1], "battery-level", *through(way)).splitlines()
    assert re.fullmatch(r"battery-level = \d+ %", said)
    assert re.match(rf"answered by .* in [\d.]+ ms, through gateway {way.gateway}", answered)
    assert way.is_direct or ", which " in answered


def test_a_property_is_read_by_its_id_and_told_what_it_means(way: RequestPath) -> None:
    said, _ = way.shell.text("read", way.devices[1], "8100", *through(way)).splitlines()
    assert re.fullmatch(r"8100 = [0-9a-f]{2} \(battery-level \d+ %\)", said)


def test_programs_get_the_answer_as_it_is(way: RequestPath) -> None:
    found = way.shell.json("read", way.devices[1], "battery-level", *through(way), "--priority", "high")
    assert (found["status"], found["gateway"]) == (0, way.gateway)
    assert isinstance(found["value"], int)
    assert way.is_direct or found["choice"]["candidates"]


def test_what_is_written_is_read_again(way: RequestPath) -> None:
    device = way.devices[0]
    way.shell.text("write", device, "9802", "06", *through(way))
    assert way.shell.json("read", device, "9802", *through(way))["value"] == "06"
    for value in ("4", "8"):  # loud enough for those that hang on it, and at last as it was
        said, _ = way.shell.text("write", device, "tx-power", value, *through(way)).splitlines()
        assert said == f"tx-power = {value} is written"
        assert way.shell.json("read", device, "tx-power", *through(way))["value"] == int(value)


def test_text_that_is_no_json_is_written_as_text_and_nothing_as_null(way: RequestPath) -> None:
    device = way.devices[0]
    said, _ = way.shell.text("write", device, "device-mode", "connected", *through(way)).splitlines()
    assert said == "device-mode = connected is written"
    assert way.shell.json("read", device, "device-mode", *through(way))["value"] == "connected"
    said, _ = way.shell.text("write", device, "request-property-reporting", *through(way)).splitlines()
    assert said == "request-property-reporting = NULL is written"


def test_a_text_that_begins_with_a_hyphen_stands_behind_two(way: RequestPath) -> None:
    said = way.shell.expect_failure("write", way.devices[0], "device-mode", *through(way), "--", "-connected")
    assert "No such option" not in said
    way.shell.expect_failure("write", way.devices[0], "device-mode", "-connected", *through(way), code=2)


def test_a_status_that_says_no_is_exit_code_1_in_words_with_who_said_it(way: RequestPath) -> None:
    said = way.shell.expect_failure("read", way.devices[1], "9820", *through(way))
    assert said.startswith("Error: unknown-identifier (status 4): ")
    assert re.search(rf"; answered by the device itself in [\d.]+ ms, through gateway {way.gateway}$", said)
    said = way.shell.expect_failure("read", way.devices[1], "no-such-thing", *through(way))
    assert "answered by the gateway instead of the device" in said


def test_a_gateway_tells_its_version(way: RequestPath) -> None:
    said, answered = way.shell.text("apiversion", way.gateway, *way.flags).splitlines()
    assert said == f"{way.gateway} speaks version 2.4.0"
    assert answered.startswith("answered by the gateway itself in ")
    assert way.shell.json("apiversion", f"bmac-{way.gateway.upper()}", *way.flags)["version"] == "2.4.0"


def test_an_answer_that_says_no_is_told_to_programs_too(way: RequestPath) -> None:
    refused = way.shell("read", way.devices[0], "9820", "--json", *through(way))
    assert (refused.exit_code, json.loads(refused.stdout)["status"]) == (1, 4)
    assert len(refused.stderr.splitlines()) == 1


def test_a_value_that_does_not_fit_is_refused(way: RequestPath) -> None:
    said = way.shell.expect_failure("write", way.devices[0], "tx-power", "loud", *through(way))
    assert "invalid-value (status 6)" in said if way.is_direct else "value" in said


# --- Acks ---


def test_an_ack_is_sent_and_not_answered(way: RequestPath) -> None:
    for identifier in ("8800", "temperature"):
        told = way.shell.json("ack", way.devices[1], identifier, "--time", SOON, *through(way))
        assert told["state"] == "SENT"


def test_erasing_asks_back_unless_told_not_to(way: RequestPath) -> None:
    erase = ["ack", way.devices[1], "8800", "--time", SOON, "--type", "2", *through(way)]
    for typed in ("", "n\n"):
        refused = way.shell(*erase, stdin=typed)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "Erase all samples of 8800" in refused.stderr
    assert way.shell(*erase, stdin="y\n").exit_code == 0
    assert way.shell.text(*erase, "--yes")


# --- Wrong usage, and no answer ---


@each_row(
    "arguments",
    [
        ["read", "ca5bda1a0002"],
        ["read", "xyz", "8100"],
        ["read", "ca5bda1a0002", "a/b"],
        ["read", "ca5bda1a0002", "8100", "--priority", "5"],
        ["read", "ca5bda1a0002", "8100", "--timeout", "0"],
        ["read", "ca5bda1a0002", "8100", "--timeout", "nan"],
        ["read", "ca5bda1a0002", "8100", "--broker", "http://x"],
        ["read", "ca5bda1a0002", "8100", "--broker", "mqtt://127.0.0.1:1"],
        ["read", "ca5bda1a0002", "8100", "--key", "00"],
        ["write", "ca5bda1a0002", "8110", "0"],
        ["write", "ca5bda1a0002", "8110", "xx"],
        ["write", "ca5bda1a0002", "tx-power", "--timout=3"],
        ["write", "ca5bda1a0002", "tx-power", "1", "2"],
        ["ack", "ca5bda1a0002", "8800"],
        ["ack", "ca5bda1a0002", "8800", "--time", "now"],
        ["ack", "ca5bda1a0002", "8800", "--time", SOON, "--type", "3"],
        ["apiversion"],
        ["apiversion", "02005e000001", "--topic-prefix", "site/7"],
        ["read", "ca5bda1a0002", "8100", "--tls-ca", __file__],
        ["watch", "--topic-prefix", "site/7"],
        ["requests", "xyz"],
    ],
)
def test_wrong_usage_is_exit_code_2(nobody: Shell, arguments: list[str]) -> None:
    nobody.expect_failure(*arguments, code=2)


def test_without_a_login_nobody_is_asked(nobody: Shell) -> None:
    assert "not logged in" in nobody.expect_failure("read", "ca5bda1a0002", "8100")


@pytest.mark.parametrize("broker", ["embedded", "mqtt://meshfleet:secret-secret@127.0.0.1:1"])
def test_the_broker_of_a_service_on_this_machine_means_nothing_here(
    admin: Shell, place: RunningFleet, broker: str
) -> None:
    device = place.gateways[0].devices[0]
    found = admin.json("read", device, "battery-level", MESHFLEET_BROKER=broker)
    assert found["choice"]["candidates"]  # it was the service that chose


def test_the_way_to_a_broker_may_be_in_the_environment(nobody: Shell, alone: EmulatedGateway) -> None:
    given = ["apiversion", alone.mac, "--topic-prefix", alone.prefix]
    assert nobody.json(*given, MESHFLEET_MESH=alone.broker)["version"] == "2.4.0"


def test_who_vouches_for_a_service_is_not_in_the_way_of_a_request(admin: Shell, place: RunningFleet) -> None:
    device = place.gateways[0].devices[0]
    assert admin.json("read", device, "8100", MESHFLEET_TLS_CA=certifi.where())["status"] == 0


def test_a_gateway_that_does_not_answer_is_told(nobody: Shell, alone: EmulatedGateway) -> None:
    direct = ["--broker", alone.broker, "--topic-prefix", alone.prefix, "--timeout", "0.2"]
    direct += ["--gateway", "02005e00f001"]
    assert "02005e00f001" in nobody.expect_failure("read", alone.devices[0], "8100", *direct)


def test_a_broker_that_is_not_there_is_told_without_the_password(nobody: Shell) -> None:
    direct = ["--broker", "mqtt://ada:secret-secret@127.0.0.1:1", "--gateway", "02005e00f001"]
    said = nobody.expect_failure("read", "ca5bda1a0002", "8100", *direct)
    assert "127.0.0.1:1" in said
    assert "secret-secret" not in said


def test_a_device_of_nobody_is_told(admin: Shell) -> None:
    assert "bmac-020000000000" in admin.expect_failure("read", "020000000000", "8100")


# --- Keys ---

KEY = "000102030405060708090a0b0c0d0e0f"


def test_keys_come_from_the_environment_and_are_not_shown(way: RequestPath) -> None:
    given = ["read", way.devices[1], "8100", *through(way)]
    result = way.shell(*given, MESHFLEET_KEY=KEY)
    assert "access-denied (status 11)" in result.stderr
    assert KEY not in result.output
    assert "hex" in way.shell.expect_failure(*given, MESHFLEET_KEY="secret-secret")
    assert "secret-secret" not in way.shell.expect_failure(*given, MESHFLEET_PUBLIC_KEY="secret-secret")


def test_keys_are_asked_for_at_a_terminal_and_not_shown(way: RequestPath) -> None:
    given = ["read", way.devices[1], "8100", *through(way), "--ask-key"]
    shown, code = run_at_terminal(way.shell, *given, typed=f"{KEY}\n")
    assert code == 1
    assert "Network key: " in shown
    assert "access-denied (status 11)" in shown
    assert KEY not in shown


# --- What was asked before ---


def test_the_requests_to_a_device_are_listed_and_shown(admin: Shell, place: RunningFleet) -> None:
    device = place.gateways[0].devices[2]
    admin.text("read", device, "8100")
    admin("read", device, "9820")
    admin.text("ack", device, "8800", "--time", SOON)
    found: list[Any] = admin.json_lines("requests", device, "--limit", "3")
    assert [each["request"]["operation"] for each in found] == ["ack", "read", "read"]
    assert admin.json_lines("requests", "list", device, "--limit", "1") == found[:1]
    rows = admin.text("requests", device).splitlines()
    assert "unknown-identifier (status 4)" in rows[2]
    assert re.search(r" 8100 +DONE +[0-9a-f]{2} \(battery-level \d+ %\) ", rows[3])
    assert admin.json("requests", "show", found[2]["id"]) == found[2]
    assert re.search(
        r"^request\.operation +read$", admin.text("requests", "show", found[2]["id"]), re.MULTILINE
    )
    assert "request not found" in admin.expect_failure("requests", "show", "nothing")
    admin.expect_failure("requests", code=2)
    assert "show" in admin.text("requests", "--help")
