"""`meshfleet read`, `write`, `ack`, `apiversion` and `requests`, through the service and through a broker."""

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

SAMPLE_TIME = "2026-11-15T09:11:55.605Z"


class RequestPath(NamedTuple):
    """Route to a gateway with its shell and flags: through the service, or directly through a broker."""

    shell: Shell
    flags: list[str]
    gateway: str
    devices: tuple[str, ...]
    is_direct: bool


@pytest.fixture(scope="module")
def standalone() -> Iterator[EmulatedGateway]:
    """Run a gateway on a broker without a service, with a topic prefix."""
    with emulated_gateway(devices=10, speed=60, prefix="site/7") as running:
        yield running


@pytest.fixture(params=["service", "broker"])
def route(request: pytest.FixtureRequest, logged_out: Shell) -> RequestPath:
    if request.param == "service":
        service: RunningFleet = request.getfixturevalue("service")
        shell: Shell = request.getfixturevalue("admin")
        return RequestPath(shell, [], service.gateways[0].mac, service.gateways[0].devices, is_direct=False)
    standalone: EmulatedGateway = request.getfixturevalue("standalone")
    flags = ["--broker", standalone.broker, "--topic-prefix", standalone.prefix]
    return RequestPath(logged_out, flags, standalone.mac, standalone.devices, is_direct=True)


def route_flags(route: RequestPath) -> list[str]:
    return [*route.flags, "--gateway", route.gateway] if route.is_direct else []


# --- Reading and writing ---


def test_a_property_is_read_by_its_name_with_its_unit(route: RequestPath) -> None:
    message, responder = route.shell.text(
        "read", route.devices[1], "battery-level", *route_flags(route)
    ).splitlines()
    assert re.fullmatch(r"battery-level = \d+ %", message)
    assert re.match(rf"answered by .* in [\d.]+ ms, through gateway {route.gateway}", responder)
    assert route.is_direct or ", which " in responder


def test_a_property_read_by_its_id_is_shown_with_its_meaning(route: RequestPath) -> None:
    message, _ = route.shell.text("read", route.devices[1], "8100", *route_flags(route)).splitlines()
    assert re.fullmatch(r"8100 = [0-9a-f]{2} \(battery-level \d+ %\)", message)


def test_json_output_has_the_fields_of_the_response(route: RequestPath) -> None:
    found = route.shell.json(
        "read", route.devices[1], "battery-level", *route_flags(route), "--priority", "high"
    )
    assert (found["status"], found["gateway"]) == (0, route.gateway)
    assert isinstance(found["value"], int)
    assert route.is_direct or found["choice"]["candidates"]


def test_a_written_value_is_read_back(route: RequestPath) -> None:
    device = route.devices[0]
    route.shell.text("write", device, "9802", "06", *route_flags(route))
    assert route.shell.json("read", device, "9802", *route_flags(route))["value"] == "06"
    for value in ("4", "8"):  # enough power for its children; the last value is the original one
        message, _ = route.shell.text("write", device, "tx-power", value, *route_flags(route)).splitlines()
        assert message == f"tx-power = {value} is written"
        assert route.shell.json("read", device, "tx-power", *route_flags(route))["value"] == int(value)


def test_text_that_is_not_json_is_written_as_text_and_no_value_as_null(route: RequestPath) -> None:
    device = route.devices[0]
    message, _ = route.shell.text(
        "write", device, "device-mode", "connected", *route_flags(route)
    ).splitlines()
    assert message == "device-mode = connected is written"
    assert route.shell.json("read", device, "device-mode", *route_flags(route))["value"] == "connected"
    message, _ = route.shell.text(
        "write", device, "request-property-reporting", *route_flags(route)
    ).splitlines()
    assert message == "request-property-reporting = NULL is written"


def test_a_text_that_begins_with_a_hyphen_must_follow_two_hyphens(route: RequestPath) -> None:
    message = route.shell.expect_failure(
        "write", route.devices[0], "device-mode", *route_flags(route), "--", "-connected"
    )
    assert "No such option" not in message
    route.shell.expect_failure(
        "write", route.devices[0], "device-mode", "-connected", *route_flags(route), code=2
    )


def test_an_error_status_is_exit_code_1_and_named_with_its_responder(route: RequestPath) -> None:
    message = route.shell.expect_failure("read", route.devices[1], "9820", *route_flags(route))
    assert message.startswith("Error: unknown-identifier (status 4): ")
    assert re.search(
        rf"; answered by the device itself in [\d.]+ ms, through gateway {route.gateway}$", message
    )
    message = route.shell.expect_failure("read", route.devices[1], "no-such-thing", *route_flags(route))
    assert "answered by the gateway instead of the device" in message


def test_the_api_version_of_a_gateway_is_read(route: RequestPath) -> None:
    message, responder = route.shell.text("apiversion", route.gateway, *route.flags).splitlines()
    assert message == f"{route.gateway} has API version 2.4.0"
    assert responder.startswith("answered by the gateway itself in ")
    assert route.shell.json("apiversion", f"bmac-{route.gateway.upper()}", *route.flags)["version"] == "2.4.0"


def test_an_error_response_is_printed_as_json_too(route: RequestPath) -> None:
    refused = route.shell("read", route.devices[0], "9820", "--json", *route_flags(route))
    assert (refused.exit_code, json.loads(refused.stdout)["status"]) == (1, 4)
    assert len(refused.stderr.splitlines()) == 1


def test_a_value_that_does_not_fit_is_refused(route: RequestPath) -> None:
    message = route.shell.expect_failure("write", route.devices[0], "tx-power", "loud", *route_flags(route))
    assert "invalid-value (status 6)" in message if route.is_direct else "value" in message


# --- Acks ---


def test_an_ack_is_sent_without_a_response(route: RequestPath) -> None:
    for identifier in ("8800", "temperature"):
        result = route.shell.json(
            "ack", route.devices[1], identifier, "--time", SAMPLE_TIME, *route_flags(route)
        )
        assert result["state"] == "SENT"


def test_erasing_needs_a_confirmation(route: RequestPath) -> None:
    erase = ["ack", route.devices[1], "8800", "--time", SAMPLE_TIME, "--type", "2", *route_flags(route)]
    for typed in ("", "n\n"):
        refused = route.shell(*erase, stdin=typed)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "Erase all samples of 8800" in refused.stderr
    assert route.shell(*erase, stdin="y\n").exit_code == 0
    assert route.shell.text(*erase, "--yes")


# --- Wrong usage, and no response ---


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
        ["ack", "ca5bda1a0002", "8800", "--time", SAMPLE_TIME, "--type", "3"],
        ["apiversion"],
        ["apiversion", "02005e000001", "--topic-prefix", "site/7"],
        ["read", "ca5bda1a0002", "8100", "--tls-ca", __file__],
        ["watch", "--topic-prefix", "site/7"],
        ["requests", "xyz"],
    ],
)
def test_wrong_usage_is_exit_code_2(logged_out: Shell, arguments: list[str]) -> None:
    logged_out.expect_failure(*arguments, code=2)


def test_without_a_login_no_request_is_sent(logged_out: Shell) -> None:
    assert "not logged in" in logged_out.expect_failure("read", "ca5bda1a0002", "8100")


@pytest.mark.parametrize("broker", ["embedded", "mqtt://meshfleet:secret-secret@127.0.0.1:1"])
def test_the_broker_setting_of_a_service_is_ignored(admin: Shell, service: RunningFleet, broker: str) -> None:
    device = service.gateways[0].devices[0]
    found = admin.json("read", device, "battery-level", MESHFLEET_BROKER=broker)
    assert found["choice"]["candidates"]  # the service chose the gateway


def test_the_broker_may_be_given_by_the_environment(logged_out: Shell, standalone: EmulatedGateway) -> None:
    command = ["apiversion", standalone.mac, "--topic-prefix", standalone.prefix]
    assert logged_out.json(*command, MESHFLEET_MESH=standalone.broker)["version"] == "2.4.0"


def test_trusted_authorities_in_the_environment_do_not_need_a_broker(
    admin: Shell, service: RunningFleet
) -> None:
    device = service.gateways[0].devices[0]
    assert admin.json("read", device, "8100", MESHFLEET_TLS_CA=certifi.where())["status"] == 0


def test_a_gateway_that_does_not_respond_is_reported(logged_out: Shell, standalone: EmulatedGateway) -> None:
    options = ["--broker", standalone.broker, "--topic-prefix", standalone.prefix, "--timeout", "0.2"]
    options += ["--gateway", "02005e00f001"]
    assert "02005e00f001" in logged_out.expect_failure("read", standalone.devices[0], "8100", *options)


def test_an_unreachable_broker_is_reported_without_the_password(logged_out: Shell) -> None:
    options = ["--broker", "mqtt://ada:secret-secret@127.0.0.1:1", "--gateway", "02005e00f001"]
    message = logged_out.expect_failure("read", "ca5bda1a0002", "8100", *options)
    assert "127.0.0.1:1" in message
    assert "secret-secret" not in message


def test_an_unknown_device_is_reported(admin: Shell) -> None:
    assert "bmac-020000000000" in admin.expect_failure("read", "020000000000", "8100")


# --- Keys ---

KEY = "000102030405060708090a0b0c0d0e0f"


def test_keys_are_read_from_the_environment_and_not_shown(route: RequestPath) -> None:
    command = ["read", route.devices[1], "8100", *route_flags(route)]
    result = route.shell(*command, MESHFLEET_KEY=KEY)
    assert "access-denied (status 11)" in result.stderr
    assert KEY not in result.output
    assert "hex" in route.shell.expect_failure(*command, MESHFLEET_KEY="secret-secret")
    assert "secret-secret" not in route.shell.expect_failure(*command, MESHFLEET_PUBLIC_KEY="secret-secret")


def test_keys_are_prompted_for_at_a_terminal_and_not_shown(route: RequestPath) -> None:
    command = ["read", route.devices[1], "8100", *route_flags(route), "--ask-key"]
    shown, code = run_at_terminal(route.shell, *command, typed=f"{KEY}\n")
    assert code == 1
    assert "Network key: " in shown
    assert "access-denied (status 11)" in shown
    assert KEY not in shown


# --- History ---


def test_the_requests_to_a_device_are_listed_and_shown(admin: Shell, service: RunningFleet) -> None:
    device = service.gateways[0].devices[2]
    admin.text("read", device, "8100")
    admin("read", device, "9820")
    admin.text("ack", device, "8800", "--time", SAMPLE_TIME)
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
