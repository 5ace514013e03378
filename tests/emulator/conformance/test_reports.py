"""Reports: each of the eleven kinds with each of its fields, as an independent client receives them."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulator.conformance.gateway_process import run_gateway
from tests.emulator.conformance.payload_shapes import REPORTS, WITHOUT_IDENTIFIER, check_report
from tests.emulator.conformance.site import (
    CLIP,
    DOOR,
    EXTENDER,
    FAR,
    OUTER_SENSOR,
    REPORTING,
    STORED,
    TRACKER,
    UPDATED,
    small_site,
)
from tests.emulator.conformance.variants import differs_by_mode
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.emulator.conformance.gateway_process import GatewayProcess
    from tests.emulator.conformance.recorder import RecordedMessage
    from tests.emulator.conformance.variants import Variant
    from tests.servers import ServerAddress

UNDECODABLE = {"8020", "8150", "8204", "8210", "8831", "9821"}
"""Identifiers that products report and that have no layout."""


def is_of_kind(kind: str) -> Callable[[RecordedMessage], bool]:
    return lambda message: message.parts[0] == "device" and message.parts[2] == kind


def has_fields(report: dict[str, Any], **fields: object) -> bool:
    return fields.items() <= report.items()


def enter_dfu_mode(gateway: GatewayProcess) -> int:
    """Put a device into DFU mode. Return the mark after which it is in that mode."""
    while True:
        mark = gateway.recorder.mark
        if gateway.request(UPDATED, "write/8110", value="01")["status"] == 0:
            return mark
        # It is in DFU mode or just leaving it: it reports its mode when it is back.
        mode = gateway.identifier("8110", "device-mode")
        gateway.report(UPDATED, gateway.kind("property"), mode, after=mark)


@differs_by_mode()
@pytest.mark.rule("gateway-14", "report-12", "report-13", "topic-1", "id-1", "id-9", "id-11", "id-22")
@each_row("kind", ["heartbeat", "rssi", "property", "measurement", "measurement-error", "event"])
def test_every_report_of_a_kind_has_its_topic_and_its_fields_and_no_others(
    gateway: GatewayProcess, kind: str
) -> None:
    report_kind = kind if kind in WITHOUT_IDENTIFIER else gateway.kind(kind)
    gateway.recorder.wait_for_many(3, is_of_kind(report_kind))
    messages = [message for message in gateway.recorder.messages_since() if is_of_kind(report_kind)(message)]
    for message in messages:
        check_report(message)


@pytest.mark.rule("gateway-14", "report-43", "topic-12")
def test_a_device_in_dfu_mode_has_dfu_reports_instead_of_heartbeats(gateway: GatewayProcess) -> None:
    mark = enter_dfu_mode(gateway)
    first, second = gateway.recorder.wait_for_many(
        2, lambda message: message.is_report(UPDATED, "dfu"), after=mark
    )
    check_report(first)
    assert first.payload["parent"] in {gateway.mac, EXTENDER}
    messages = gateway.recorder.messages_since(mark)
    messages = messages[messages.index(first) : messages.index(second)]
    assert not [message for message in messages if message.is_report(UPDATED, "heartbeat")]


@differs_by_mode()
@pytest.mark.rule("report-32", "report-33")
def test_reports_are_raw_or_decoded_by_the_mode(gateway: GatewayProcess) -> None:
    for kind in ("property", "measurement", "event"):
        gateway.recorder.wait_for(is_of_kind(gateway.kind(kind)))
    reported = [message for message in gateway.recorder.messages_since() if message.parts[0] == "device"]
    kinds = {message.parts[2] for message in reported}
    raw = {
        message.parts[3] for message in reported if message.parts[2] in {"property", "measurement", "event"}
    }
    if gateway.variant.mode == "raw":
        assert not [kind for kind in kinds if kind.endswith("-decoded")]
    else:
        assert raw <= UNDECODABLE
        assert not {"measurement", "measurement-error", "event"} & kinds
    assert kinds <= REPORTS.keys()


@differs_by_mode()
@pytest.mark.rule("report-34", "gateway-31")
@each_row(("device", "identifier"), [(DOOR, "8831"), (EXTENDER, "8210")])
def test_a_property_without_a_layout_is_reported_raw_in_both_modes(
    gateway: GatewayProcess, device: str, identifier: str
) -> None:
    value = gateway.report(device, "property", identifier)["value"]
    assert value == "12" if identifier == "8210" else len(value) == 8


@differs_by_mode()
@pytest.mark.rule("gateway-25", "topic-6")
@each_row("kind", ["heartbeat", "rssi", "property", "measurement"])
def test_a_gateway_reports_about_itself_as_a_device(gateway: GatewayProcess, kind: str) -> None:
    if kind in WITHOUT_IDENTIFIER:
        gateway.report(gateway.mac, kind)
    elif kind == "property":
        model = gateway.report(gateway.mac, gateway.kind(kind), gateway.identifier("8000", "model-number"))
        assert model["value"] == gateway.value_in_mode("2011", 0x2011)
    else:
        gateway.report(gateway.mac, gateway.kind(kind), gateway.identifier("8800", "temperature"))


@pytest.mark.rule("report-38")
@each_row("kind", ["heartbeat", "rssi", "measurement"])
def test_seq_counts_up_within_a_series(gateway: GatewayProcess, kind: str) -> None:
    series: tuple[str, ...] = (kind,)
    if kind == "measurement":
        series = (gateway.kind(kind), gateway.identifier("8803", "light-intensity"))
    found = gateway.recorder.wait_for_many(5, lambda message: message.is_report(OUTER_SENSOR, *series))
    assert [message.payload["seq"] for message in found] == [0, 1, 2, 3, 4]


@pytest.mark.rule("report-38")
def test_seq_of_a_property_counts_up_too(gateway: GatewayProcess) -> None:
    kind, identifier = gateway.kind("property"), gateway.identifier("8810", "motion")
    found = gateway.recorder.wait_for_many(
        2, lambda message: message.is_report(OUTER_SENSOR, kind, identifier)
    )
    assert [message.payload["seq"] for message in found] == [0, 1]


@pytest.mark.rule("gateway-29", "report-39")
@each_row(("device", "status"), [(EXTENDER, 0), (DOOR, 1)])
def test_the_status_of_a_heartbeat_shows_a_low_battery(
    gateway: GatewayProcess, device: str, status: int
) -> None:
    gateway.report(device, "heartbeat", where=partial(has_fields, status=status))


@pytest.mark.rule("report-15", "report-41", "report-42", "gateway-22")
@each_row(
    ("device", "parent", "on_channel"),
    [(TRACKER, None, False), (TRACKER, EXTENDER, True), (CLIP, None, True), (OUTER_SENSOR, EXTENDER, True)],
)
def test_rssi_is_reported_per_parent_and_has_a_channel_if_advertised(
    gateway: GatewayProcess, device: str, parent: str | None, *, on_channel: bool
) -> None:
    expected_parent = parent or gateway.mac
    message = gateway.report(device, "rssi", where=partial(has_fields, parent=expected_parent))
    assert ("channel" in message) == on_channel


@pytest.mark.rule("gateway-22")
def test_rssi_is_reported_on_all_three_channels(gateway: GatewayProcess) -> None:
    for channel in (37, 38, 39):
        gateway.report(CLIP, "rssi", where=partial(has_fields, channel=channel))


@pytest.mark.rule("report-15")
def test_a_parent_too_far_away_is_unreachable_and_a_near_one_is_not(gateway: GatewayProcess) -> None:
    gateway.report(FAR, "rssi", where=partial(has_fields, unreachable=True))
    assert not gateway.report(CLIP, "rssi").get("unreachable", False)


def test_several_parents_report_the_rssi_of_the_same_device(gateway: GatewayProcess) -> None:
    for parent in (gateway.mac, EXTENDER):
        gateway.report(TRACKER, "rssi", where=partial(has_fields, parent=parent))


@differs_by_mode()
@pytest.mark.rule("report-4", "report-5", "value-22")
def test_a_property_with_an_extension_has_it_in_ext_or_in_its_hex(gateway: GatewayProcess) -> None:
    report = gateway.report(TRACKER, gateway.kind("property"), gateway.identifier("8810", "motion"))
    if gateway.variant.mode == "raw":
        assert report["value"] == "000000000000"
    else:
        assert report["value"] == 0
        assert report["ext"] == {"transitionCounter": 0, "isTransition": False}


@differs_by_mode()
@pytest.mark.rule("report-4", "report-5")
def test_a_property_without_an_extension_has_no_ext(gateway: GatewayProcess) -> None:
    report = gateway.report(TRACKER, gateway.kind("property"), gateway.identifier("8001", "firmware-version"))
    assert report["value"] == gateway.value_in_mode("030104", "3.1.4")
    assert "ext" not in report


@differs_by_mode()
@pytest.mark.rule("report-6", "report-7", "value-24")
@each_row(("device", "rest"), [(TRACKER, ""), (DOOR, "01")])
def test_a_measurement_has_its_value_and_the_remaining_bytes(
    gateway: GatewayProcess, device: str, rest: str
) -> None:
    identifier = gateway.identifier("8800", "temperature")
    report = gateway.report(device, gateway.kind("measurement"), identifier)
    if gateway.variant.mode == "raw":
        assert report["value"][4:] == rest
        degrees = int(report["value"][:4], 16) / 100
    else:
        assert report.get("ext") == ({"rest": rest} if rest else None)
        degrees = report["value"]
    assert 10.0 < degrees < 35.0


@differs_by_mode()
@pytest.mark.rule("report-8", "report-9", "report-40", "gateway-30", "topic-15")
@each_row("has_detail", [True, False])
def test_a_failed_measurement_has_an_error(gateway: GatewayProcess, *, has_detail: bool) -> None:
    def is_match(message: RecordedMessage) -> bool:
        return (
            is_of_kind(gateway.kind("measurement-error"))(message)
            and ("errorExt" in message.payload) == has_detail
        )

    message = gateway.recorder.wait_for(is_match)
    check_report(message)
    assert message.payload["error"] in {1, 8, 9}


@pytest.mark.rule("gateway-29")
def test_a_failed_measurement_shows_in_the_status_of_the_heartbeat(gateway: GatewayProcess) -> None:
    gateway.recorder.wait_for(
        lambda message: is_of_kind("heartbeat")(message) and message.payload["status"] == 2
    )


@differs_by_mode()
@pytest.mark.rule("report-10", "report-11", "gateway-27")
def test_an_event_has_a_value_and_an_extension(gateway: GatewayProcess) -> None:
    report = gateway.report(TRACKER, gateway.kind("event"), gateway.identifier("8810", "motion"))
    if gateway.variant.mode == "raw":
        assert report["value"] == "100000000101"
    else:
        assert report["value"] == 16
        assert report["ext"] == {"transitionCounter": 1, "isTransition": True}


@differs_by_mode()
@pytest.mark.rule("report-10", "report-11", "gateway-33")
def test_a_device_in_storage_mode_is_reported_by_events_alone(gateway: GatewayProcess) -> None:
    identifier = gateway.identifier("8112", "storage-mode-event")
    report = gateway.report(STORED, gateway.kind("event"), identifier)
    expected = {"modelNumber": 0x63, "variant": 0} if gateway.variant.mode == "decoded" else "006300"
    assert report["value"] == expected
    assert "ext" not in report
    reported = {
        message.parts[2:]
        for message in gateway.recorder.messages_since()
        if message.parts[:2] == ("device", STORED)
    }
    assert reported == {(gateway.kind("event"), identifier)}


@pytest.mark.rule("report-10", "report-11", "gateway-38")
def test_an_event_may_have_no_value(broker: ServerAddress, variant: Variant) -> None:
    with run_gateway(broker, variant, small_site, "--fault", "crash=0.1") as crashing:
        identifier = crashing.identifier("8113", "watchdog-reset-event")
        report = crashing.report(crashing.mac, crashing.kind("event"), identifier)
    assert report.keys() == {"time", "seq"}


@pytest.mark.rule("gateway-42", "gateway-23")
def test_the_time_of_reports_follows_the_wall_clock(gateway: GatewayProcess) -> None:
    heartbeats = gateway.recorder.wait_for_many(4, lambda message: message.is_report(REPORTING, "heartbeat"))
    times = [datetime.fromisoformat(message.payload["time"]) for message in heartbeats]
    # One minute of simulated time lies between two of them.
    for earlier, later in pairwise([gateway.started, *times, datetime.now(UTC)]):
        assert earlier < later
