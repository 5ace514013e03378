"""Reports: each of the eleven kinds with each of its fields, as somebody else's client hears them."""

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
"""What products report and no dictionary holds."""


def of_kind(kind: str) -> Callable[[RecordedMessage], bool]:
    return lambda heard: heard.parts[0] == "device" and heard.parts[2] == kind


def has(report: dict[str, Any], **fields: object) -> bool:
    return fields.items() <= report.items()


def enter_dfu_mode(gateway: GatewayProcess) -> int:
    """Send a device into DFU mode; gives the mark from where on it is there."""
    while True:
        mark = gateway.recorder.mark
        if gateway.request(UPDATED, "write/8110", value="01")["status"] == 0:
            return mark
        # It is in DFU mode, or leaves it: then it tells its mode when it is back.
        mode = gateway.identifier("8110", "device-mode")
        gateway.report(UPDATED, gateway.kind("property"), mode, after=mark)


@differs_by_mode()
@pytest.mark.rule("gateway-14", "report-12", "report-13", "topic-1", "id-1", "id-9", "id-11", "id-22")
@each_row("kind", ["heartbeat", "rssi", "property", "measurement", "measurement-error", "event"])
def test_every_report_of_a_kind_has_its_topic_and_its_fields_and_no_others(
    gateway: GatewayProcess, kind: str
) -> None:
    spelled = kind if kind in WITHOUT_IDENTIFIER else gateway.kind(kind)
    gateway.recorder.wait_for_many(3, of_kind(spelled))
    found = [heard for heard in gateway.recorder.messages_since() if of_kind(spelled)(heard)]
    for heard in found:
        check_report(heard)


@pytest.mark.rule("gateway-14", "report-43", "topic-12")
def test_a_device_in_dfu_mode_is_told_by_dfu_reports_in_place_of_heartbeats(gateway: GatewayProcess) -> None:
    mark = enter_dfu_mode(gateway)
    first, second = gateway.recorder.wait_for_many(2, lambda each: each.is_report(UPDATED, "dfu"), after=mark)
    check_report(first)
    assert first.payload["parent"] in {gateway.mac, EXTENDER}
    between = gateway.recorder.messages_since(mark)
    between = between[between.index(first) : between.index(second)]
    assert not [each for each in between if each.is_report(UPDATED, "heartbeat")]


@differs_by_mode()
@pytest.mark.rule("report-32", "report-33")
def test_reports_are_raw_or_decoded_by_the_mode(gateway: GatewayProcess) -> None:
    for kind in ("property", "measurement", "event"):
        gateway.recorder.wait_for(of_kind(gateway.kind(kind)))
    reported = [heard for heard in gateway.recorder.messages_since() if heard.parts[0] == "device"]
    kinds = {heard.parts[2] for heard in reported}
    raw = {heard.parts[3] for heard in reported if heard.parts[2] in {"property", "measurement", "event"}}
    if gateway.variant.mode == "raw":
        assert not [kind for kind in kinds if kind.endswith("-decoded")]
    else:
        assert raw <= UNDECODABLE
        assert not {"measurement", "measurement-error", "event"} & kinds
    assert kinds <= REPORTS.keys()


@differs_by_mode()
@pytest.mark.rule("report-34", "gateway-31")
@each_row(("device", "identifier"), [(DOOR, "8831"), (EXTENDER, "8210")])
def test_what_nobody_can_decode_is_reported_raw_in_both_modes(
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
    found = gateway.recorder.wait_for_many(5, lambda heard: heard.is_report(OUTER_SENSOR, *series))
    assert [heard.payload["seq"] for heard in found] == [0, 1, 2, 3, 4]


@pytest.mark.rule("report-38")
def test_seq_of_a_property_counts_up_too(gateway: GatewayProcess) -> None:
    kind, identifier = gateway.kind("property"), gateway.identifier("8810", "motion")
    found = gateway.recorder.wait_for_many(2, lambda heard: heard.is_report(OUTER_SENSOR, kind, identifier))
    assert [heard.payload["seq"] for heard in found] == [0, 1]


@pytest.mark.rule("gateway-29", "report-39")
@each_row(("device", "status"), [(EXTENDER, 0), (DOOR, 1)])
def test_the_status_of_a_heartbeat_tells_of_a_low_battery(
    gateway: GatewayProcess, device: str, status: int
) -> None:
    gateway.report(device, "heartbeat", where=partial(has, status=status))


@pytest.mark.rule("report-15", "report-41", "report-42", "gateway-22")
@each_row(
    ("device", "parent", "on_channel"),
    [(TRACKER, None, False), (TRACKER, EXTENDER, True), (CLIP, None, True), (OUTER_SENSOR, EXTENDER, True)],
)
def test_the_signal_of_a_device_is_told_by_parent_and_has_a_channel_where_it_was_advertised(
    gateway: GatewayProcess, device: str, parent: str | None, *, on_channel: bool
) -> None:
    wanted = parent or gateway.mac
    heard = gateway.report(device, "rssi", where=partial(has, parent=wanted))
    assert ("channel" in heard) == on_channel


@pytest.mark.rule("gateway-22")
def test_all_three_channels_are_heard(gateway: GatewayProcess) -> None:
    for channel in (37, 38, 39):
        gateway.report(CLIP, "rssi", where=partial(has, channel=channel))


@pytest.mark.rule("report-15")
def test_a_parent_too_far_away_is_unreachable_and_a_near_one_is_not(gateway: GatewayProcess) -> None:
    gateway.report(FAR, "rssi", where=partial(has, unreachable=True))
    assert not gateway.report(CLIP, "rssi").get("unreachable", False)


def test_several_parents_tell_how_well_they_hear_the_same_device(gateway: GatewayProcess) -> None:
    for parent in (gateway.mac, EXTENDER):
        gateway.report(TRACKER, "rssi", where=partial(has, parent=parent))


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
def test_a_measurement_has_its_value_and_what_stands_behind_it(
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
@each_row("detailed", [True, False])
def test_a_measurement_that_failed_tells_an_error(gateway: GatewayProcess, *, detailed: bool) -> None:
    def wanted(heard: RecordedMessage) -> bool:
        return of_kind(gateway.kind("measurement-error"))(heard) and ("errorExt" in heard.payload) == detailed

    found = gateway.recorder.wait_for(wanted)
    check_report(found)
    assert found.payload["error"] in {1, 8, 9}


@pytest.mark.rule("gateway-29")
def test_a_device_whose_measurement_failed_says_so_in_its_heartbeat(gateway: GatewayProcess) -> None:
    gateway.recorder.wait_for(lambda heard: of_kind("heartbeat")(heard) and heard.payload["status"] == 2)


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
def test_a_device_in_storage_mode_is_told_of_by_events_alone(gateway: GatewayProcess) -> None:
    identifier = gateway.identifier("8112", "storage-mode-event")
    report = gateway.report(STORED, gateway.kind("event"), identifier)
    stored = {"modelNumber": 0x63, "variant": 0} if gateway.variant.mode == "decoded" else "006300"
    assert report["value"] == stored
    assert "ext" not in report
    told = {
        heard.parts[2:]
        for heard in gateway.recorder.messages_since()
        if heard.parts[:2] == ("device", STORED)
    }
    assert told == {(gateway.kind("event"), identifier)}


@pytest.mark.rule("report-10", "report-11", "gateway-38")
def test_an_event_may_have_no_value(broker: ServerAddress, variant: Variant) -> None:
    with run_gateway(broker, variant, small_site, "--fault", "crash=0.1") as crashing:
        identifier = crashing.identifier("8113", "watchdog-reset-event")
        report = crashing.report(crashing.mac, crashing.kind("event"), identifier)
    assert report.keys() == {"time", "seq"}


@pytest.mark.rule("gateway-42", "gateway-23")
def test_the_time_of_reports_follows_the_clock_on_the_wall(gateway: GatewayProcess) -> None:
    beats = gateway.recorder.wait_for_many(4, lambda heard: heard.is_report(REPORTING, "heartbeat"))
    times = [datetime.fromisoformat(heard.payload["time"]) for heard in beats]
    # In the simulated world a minute lies between two of them.
    for earlier, later in pairwise([gateway.started, *times, datetime.now(UTC)]):
        assert earlier < later
