"""Encoding of reports, in both modes and at every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET

from meshfleet.emulator import ReportMode
from meshfleet.emulator.settings import OLDEST_API_VERSION
from meshfleet.protocol import reports
from meshfleet.protocol.api_versions import LATEST_VERSION
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Version
from meshfleet.protocol.topics import ReportTopic
from tests.emulator.simulated_gateway import (
    HOUR,
    MINUTE,
    ObservedReport,
    SimulatedGateway,
    decode_reports,
    generated_gateway,
    nearby_device,
    select_reports,
)
from tests.emulator.simulation.sites import device_mac
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Publish

VERSIONS = [
    Version.parse(text) for text in ("1.2.0", "1.3.0", "2.0.0", "2.0.1", "2.1.0", "2.2.0", "2.3.0", "2.4.0")
]
every_version = each_row("version", VERSIONS)
both_modes = each_row("mode", ReportMode)


def parse_topics(simulation: SimulatedGateway, published: list[Publish]) -> list[ReportTopic]:
    parsed = [simulation.gateway.topics.parse(message.topic) for message in published]
    return [each for each in parsed if isinstance(each, ReportTopic)]


@every_version
@both_modes
def test_every_report_is_valid(version: Version, mode: ReportMode) -> None:
    simulation = generated_gateway(8, mode=mode, api_version=version)
    published = simulation.advance_in_one_step(25 * MINUTE)  # properties are reported every twenty minutes
    assert simulation.gateway.report_count == len(published) > 500
    for message, topic in zip(published, parse_topics(simulation, published), strict=True):
        report = reports.decode_report(topic.kind, message.payload)
        assert reports.encode_report(topic.kind, report) == message.payload
        assert topic.gateway == simulation.mac
        assert topic.device in {each.mac for each in simulation.devices}


@pytest.mark.rule("gateway-2", "gateway-3", "gateway-9")
@both_modes
def test_all_reports_have_qos_1_and_no_retain_and_topics_of_the_gateway(mode: ReportMode) -> None:
    simulation = generated_gateway(10, mode=mode)
    for message in simulation.advance_in_one_step(25 * MINUTE):
        assert (message.qos, message.retain) == (1, False)
        assert message.topic.startswith(f"mt/gateway/{simulation.mac}/device/")


def collect_kinds(mode: ReportMode) -> set[Kind]:
    """Return the kinds of reports of one day, with a device that is put into DFU mode."""
    simulation = SimulatedGateway(
        [
            nearby_device(1, code="0005"),
            nearby_device(2, x=3.0, code="000F"),
            nearby_device(3, x=4.0, code="0050"),
        ],
        mode=mode,
    )
    simulation.send_write(device_mac(1), "8110", "01")
    return {each.kind for each in parse_topics(simulation, simulation.advance_in_one_step(24 * HOUR))}


@pytest.mark.rule("gateway-14", "report-32")
def test_a_gateway_in_raw_mode_uses_the_raw_topics_only() -> None:
    assert collect_kinds(ReportMode.RAW) == {kind for kind in Kind if not kind.is_decoded}


@pytest.mark.rule("gateway-14", "gateway-31", "report-33", "report-34")
def test_a_gateway_in_decoded_mode_uses_raw_topics_for_values_without_a_layout() -> None:
    assert collect_kinds(ReportMode.DECODED) >= {kind for kind in Kind if kind.is_decoded} | {
        Kind.PROPERTY,
        Kind.DFU,
    }


@pytest.mark.rule("gateway-31", "report-33", "report-34")
@every_version
def test_the_topic_of_a_report_in_decoded_mode_shows_whether_its_value_is_decoded(version: Version) -> None:
    simulation = generated_gateway(8, mode=ReportMode.DECODED, api_version=version)
    for topic in parse_topics(simulation, simulation.advance_in_one_step(25 * MINUTE)):
        if topic.identifier is not None:
            definition = BUILTIN_CATALOGUE[topic.identifier]
            assert topic.kind.is_decoded == (definition.layout is not None), definition.name
            assert topic.identifier == (definition.name if topic.kind.is_decoded else definition.id)


def get_content(observed: ObservedReport) -> object:
    """Return the content of a report, independent of the mode."""
    report = observed.report
    match report:
        case reports.PropertyDecoded() | reports.MeasurementDecoded() | reports.EventDecoded():
            return report.value, None if report.ext is UNSET else report.ext
        case reports.Property() | reports.Measurement() | reports.Event():
            if report.value is UNSET or BUILTIN_CATALOGUE[observed.identifier].layout is None:
                return report.value, None
            decoded = BUILTIN_CATALOGUE.decode(observed.identifier, bytes.fromhex(report.value))
            return decoded.value, decoded.ext
    return report


def test_both_modes_report_the_same_content_in_the_same_order() -> None:
    raw, decoded = generated_gateway(20, mode=ReportMode.RAW), generated_gateway(20, mode=ReportMode.DECODED)
    pairs = list(zip(raw.advance(HOUR), decoded.advance(HOUR), strict=True))
    assert len(pairs) > 3_000
    for one, other in pairs:
        assert (one.moment, one.series) == (other.moment, other.series)
        assert (one.report.time, one.report.seq) == (other.report.time, other.report.seq)
        assert get_content(one) == get_content(other)


def test_versions_differ_in_new_fields_only() -> None:
    old, new = (
        generated_gateway(10, api_version=OLDEST_API_VERSION),
        generated_gateway(10, api_version=LATEST_VERSION),
    )
    for one, other in zip(old.advance(HOUR), new.advance(HOUR), strict=True):
        assert one.series == other.series
        if one.kind is not Kind.HEARTBEAT:
            assert one.report == other.report


@each_row(("version", "is_present"), [("1.2.0", False), ("1.3.0", True), ("2.4.0", True)])
def test_last_count_is_present_from_its_version_on(version: str, *, is_present: bool) -> None:
    simulation = generated_gateway(10, api_version=Version.parse(version))
    heartbeats = [each.report for each in simulation.advance(5 * MINUTE) if each.kind is Kind.HEARTBEAT]
    assert {each.last_count is not UNSET for each in heartbeats} == {is_present}


def test_last_count_is_the_number_of_received_copies_of_the_previous_heartbeat() -> None:
    # So far away that copies are lost now and then.
    simulation = SimulatedGateway([nearby_device(1, 20.0, code="0060")])
    counts: list[tuple[int, int]] = []
    before: tuple[int, int] | None = None
    while len(counts) < 200:
        simulation.advance(simulation.gateway.next_due - simulation.now)
        for each in select_reports(
            decode_reports(simulation.gateway, simulation.published), device_mac(1), Kind.HEARTBEAT
        ):
            seq = each.report.seq
            if before is not None:
                follows = seq == (before[0] + 1) % 256
                counts.append((each.report.last_count, before[1] if follows else 0))
            before = seq, simulation.device(device_mac(1)).received_copies
        simulation.published.clear()
    assert {count for count, _ in counts} >= {1, 2, 3}
    assert [count for count, received in counts if count != received] == []


def test_all_heartbeat_copies_of_a_connected_device_are_received() -> None:
    simulation = SimulatedGateway([nearby_device(1)])
    heartbeats = select_reports(simulation.advance(HOUR), device_mac(1), Kind.HEARTBEAT)
    assert {each.report.last_count for each in heartbeats} == {3}


@pytest.mark.rule("gateway-12")
@both_modes
def test_every_topic_has_the_prefix(mode: ReportMode) -> None:
    plain = generated_gateway(5, mode=mode)
    prefixed = generated_gateway(5, mode=mode, topic_prefix="a/b")
    for one, other in zip(
        plain.advance_in_one_step(25 * MINUTE), prefixed.advance_in_one_step(25 * MINUTE), strict=True
    ):
        assert other.topic == f"a/b/{one.topic}"
        assert other.payload == one.payload


def test_the_gateway_counts_its_reports() -> None:
    simulation = generated_gateway(5)
    assert simulation.gateway.report_count == 0
    assert len(simulation.advance_in_one_step(HOUR)) == simulation.gateway.report_count
