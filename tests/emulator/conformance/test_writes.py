"""Writes: raw and decoded values, NULL in all its spellings, and the effects of writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.emulator.conformance.payload_shapes import ON_BEHALF_OF_DEVICE, ExpectedRoute, check_response
from tests.emulator.conformance.site import CLIP, DOOR, REPORTING, RESTARTED, TRACKER, WRITTEN
from tests.emulator.conformance.variants import differs_by_mode
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.emulator.conformance.gateway_process import GatewayProcess

BUSY = 8
NO_PARAMETERS: dict[str, Any] = {}
NULLS = [NO_PARAMETERS, {"value": None}, {"value": ""}]
"""Spellings of NULL in `write`."""
DECODED_NULLS = [NO_PARAMETERS, {"value": None}]
"""Spellings of NULL in `write-decoded`."""


def list_null_writes(identifier: str, name: str) -> list[Any]:
    """Return every spelling of NULL for a command."""
    raw = [(f"write/{identifier}", null) for null in NULLS]
    decoded = [(f"write-decoded/{name}", null) for null in DECODED_NULLS]
    return [*raw, *decoded]


def send_command(gateway: GatewayProcess, device: str, suffix: str, parameters: dict[str, Any]) -> int:
    """Write a command, again while the device is busy. Return the mark before the accepted write."""
    while True:
        mark = gateway.recorder.mark
        response = gateway.request(device, suffix, **parameters)
        if response["status"] != BUSY:  # still busy with the previous one
            assert check_response(gateway, response, ExpectedRoute(0, route=(device,))) == {}
            return mark


def wait_for_property(gateway: GatewayProcess, device: str, raw: str, name: str, *, after: int) -> Any:
    """Return the value of a property in its next report."""
    identifier = gateway.identifier(raw, name)
    return gateway.report(device, gateway.kind("property"), identifier, after=after)["value"]


def wait_until_property_is(
    gateway: GatewayProcess, device: str, identifier: str, value: object, *, after: int
) -> None:
    """Wait until a property is reported with a value."""
    gateway.report(
        device,
        gateway.kind("property"),
        identifier,
        after=after,
        where=lambda report: report["value"] == value,
    )


@differs_by_mode()
@pytest.mark.rule("request-12", "request-14", "response-18", "id-24", "id-25")
@each_row("value", ["00fa0a", "00FA0A", "00Fa0a"])
def test_a_value_is_written_in_hex_read_back_and_reported(gateway: GatewayProcess, value: str) -> None:
    gateway.request(WRITTEN, "write/9804", value="00c801")
    mark = gateway.recorder.mark
    response = gateway.request(WRITTEN, "write/9804", value=value)
    assert check_response(gateway, response, ExpectedRoute(0, route=(WRITTEN,))) == {}
    assert gateway.request(WRITTEN, "read/9804")["value"] == "00fa0a"
    identifier = gateway.identifier("9804", "normal-mode-advertisement-interval")
    # Up to two reports: the first may contain the previous value.
    written = gateway.value_in_mode("00fa0a", {"interval": 250, "denominator": 10})
    wait_until_property_is(gateway, WRITTEN, identifier, written, after=mark)


@pytest.mark.rule("request-13", "response-18", "value-33")
def test_a_value_is_written_as_json_and_read_back_in_both_forms(gateway: GatewayProcess) -> None:
    interval = {"interval": 500, "denominator": 3}
    response = gateway.request(WRITTEN, "write-decoded/sleep-mode-advertisement-interval", value=interval)
    assert check_response(gateway, response, ExpectedRoute(0, route=(WRITTEN,))) == {}
    assert gateway.request(WRITTEN, "read/9807")["value"] == "01f403"
    assert gateway.request(WRITTEN, "read-decoded/sleep-mode-advertisement-interval")["value"] == interval


@pytest.mark.rule("request-13", "gateway-34")
@each_row("value", [True, False])
def test_a_boolean_is_written_through_an_extender(gateway: GatewayProcess, *, value: bool) -> None:
    assert gateway.request(CLIP, "write-decoded/priority", value=value)["status"] == 0
    assert gateway.request(CLIP, "read-decoded/priority")["value"] is value
    assert gateway.request(CLIP, "read/9801")["value"] == ("01" if value else "00")


@pytest.mark.rule("request-15", "request-16", "request-18", "request-25", "value-25", "gateway-35")
@each_row(("suffix", "parameters"), list_null_writes("8302", "request-property-reporting"))
def test_a_null_write_triggers_a_report_of_all_properties(
    gateway: GatewayProcess, suffix: str, parameters: dict[str, Any]
) -> None:
    mark = send_command(gateway, REPORTING, suffix, parameters)
    model = wait_for_property(gateway, REPORTING, "8000", "model-number", after=mark)
    assert model == gateway.value_in_mode("0018", 0x18)
    assert wait_for_property(gateway, REPORTING, "9802", "tx-power", after=mark) == gateway.value_in_mode(
        "04", 4
    )


@pytest.mark.rule("request-15", "request-16", "request-18", "request-25", "value-25")
@each_row(("suffix", "parameters"), list_null_writes("8300", "soft-reset"))
def test_a_null_write_restarts_a_device(
    gateway: GatewayProcess, suffix: str, parameters: dict[str, Any]
) -> None:
    mark = send_command(gateway, RESTARTED, suffix, parameters)
    # The device may have reported all its properties just before it restarted.
    uptime, cause = gateway.identifier("8101", "uptime"), gateway.identifier("8102", "reset-cause")
    wait_until_property_is(gateway, RESTARTED, uptime, gateway.value_in_mode("00000000", 0), after=mark)
    wait_until_property_is(gateway, RESTARTED, cause, gateway.value_in_mode("04", 4), after=mark)


@pytest.mark.rule("request-15", "request-16", "response-23")
@each_row(("suffix", "parameters"), list_null_writes("9804", "normal-mode-advertisement-interval"))
def test_a_property_that_needs_a_value_rejects_null(
    gateway: GatewayProcess, suffix: str, parameters: dict[str, Any]
) -> None:
    before = gateway.request(TRACKER, "read/9804")["value"]
    response = gateway.request(TRACKER, suffix, **parameters)
    assert check_response(gateway, response, ExpectedRoute(0, route=(TRACKER,)), status=6) == {}
    assert gateway.request(TRACKER, "read/9804")["value"] == before


@pytest.mark.rule("request-17", "response-23")
@each_row("name", ["request-property-reporting", "tx-power"])
def test_an_empty_string_in_a_decoded_write_is_not_null(gateway: GatewayProcess, name: str) -> None:
    response = gateway.request(TRACKER, f"write-decoded/{name}", value="")
    assert check_response(gateway, response, ON_BEHALF_OF_DEVICE, status=6) == {}


@pytest.mark.rule("response-23", "id-24")
@each_row("value", ["0", "0x04", "zz", "04 ", 4, True, ["04"], {"a": 1}])
def test_a_value_that_is_not_hex_has_status_6(gateway: GatewayProcess, value: object) -> None:
    response = gateway.request(WRITTEN, "write/9802", value=value)
    assert check_response(gateway, response, ON_BEHALF_OF_DEVICE, status=6) == {}


@pytest.mark.rule("response-23", "value-37")
@each_row("value", ["0404", "7f", "05"])
def test_a_value_that_does_not_fit_is_rejected_by_the_device(gateway: GatewayProcess, value: str) -> None:
    response = gateway.request(TRACKER, "write/9802", value=value)
    assert check_response(gateway, response, ExpectedRoute(0, route=(TRACKER,)), status=6) == {}
    assert gateway.request(TRACKER, "read/9802")["value"] == "04"


@pytest.mark.rule("response-23")
@each_row("value", ["4", 4.5, 99, [4], {"a": 4}])
def test_a_decoded_value_that_does_not_fit_has_status_6(gateway: GatewayProcess, value: object) -> None:
    response = gateway.request(TRACKER, "write-decoded/tx-power", value=value)
    assert check_response(gateway, response, ON_BEHALF_OF_DEVICE, status=6) == {}


@pytest.mark.rule("response-27")
def test_a_property_without_a_layout_cannot_be_written_decoded(gateway: GatewayProcess) -> None:
    assert gateway.request(DOOR, "write-decoded/hall-effect-counter", value=1)["status"] == 5
