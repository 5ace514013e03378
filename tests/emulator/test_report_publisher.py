"""How reports are written: in both modes, at every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET

from meshfleet.emulator import ReportMode as Writing
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
both_modes = each_row("mode", Writing)


def topics(world: SimulatedGateway, published: list[Publish]) -> list[ReportTopic]:
    parsed = [world.gateway.topics.parse(message.topic) for message in published]
    return [each for each in parsed if isinstance(each, ReportTopic)]


@every_version
@both_modes
def test_every_report_can_be_read(version: Version, mode: Writing) -> None:
    world = generated_gateway(8, mode=mode, api_version=version)
    published = world.advance_in_one_step(25 * MINUTE)  # properties come every twenty minutes
    assert world.gateway.report_count == len(published) > 500
    for message, topic in zip(published, topics(world, published), strict=True):
        report = reports.decode_report(topic.kind, message.payload)
        assert reports.encode_report(topic.kind, report) == message.payload
        assert topic.gateway == world.mac
        assert topic.device in {each.mac for each in world.devices}


@pytest.mark.rule("gateway-2", "gateway-3", "gateway-9")
@both_modes
def test_everything_goes_out_below_the_gateway_once_and_unretained(mode: Writing) -> None:
    world = generated_gateway(10, mode=mode)
    for message in world.advance_in_one_step(25 * MINUTE):
        assert (message.qos, message.retain) == (1, False)
        assert message.topic.startswith(f"mt/gateway/{world.mac}/device/")


def kinds(mode: Writing) -> set[Kind]:
    """The kinds that a lively day has, with a device that is put into DFU mode."""
    world = SimulatedGateway(
        [
            nearby_device(1, code="0005"),
            nearby_device(2, x=3.0, code="000F"),
            nearby_device(3, x=4.0, code="0050"),
        ],
        mode=mode,
    )
    world.send_write(device_mac(1), "8110", "01")
    return {each.kind for each in topics(world, world.advance_in_one_step(24 * HOUR))}


@pytest.mark.rule("gateway-14", "report-32")
def test_a_gateway_in_raw_mode_uses_the_raw_topics_only() -> None:
    assert kinds(Writing.RAW) == {kind for kind in Kind if not kind.is_decoded}


@pytest.mark.rule("gateway-14", "gateway-31", "report-33", "report-34")
def test_a_gateway_in_decoded_mode_uses_raw_topics_for_what_it_cannot_decode() -> None:
    assert kinds(Writing.DECODED) >= {kind for kind in Kind if kind.is_decoded} | {Kind.PROPERTY, Kind.DFU}


@pytest.mark.rule("gateway-31", "report-33", "report-34")
@every_version
def test_the_topic_of_a_report_in_decoded_mode_tells_whether_its_value_is_decoded(version: Version) -> None:
    world = generated_gateway(8, mode=Writing.DECODED, api_version=version)
    for topic in topics(world, world.advance_in_one_step(25 * MINUTE)):
        if topic.identifier is not None:
            entry = BUILTIN_CATALOGUE[topic.identifier]
            assert topic.kind.is_decoded == (entry.layout is not None), entry.name
            assert topic.identifier == (entry.name if topic.kind.is_decoded else entry.id)


def said(each: ObservedReport) -> object:
    """What a report says, in either mode."""
    report = each.report
    match report:
        case reports.PropertyDecoded() | reports.MeasurementDecoded() | reports.EventDecoded():
            return report.value, None if report.ext is UNSET else report.ext
        case reports.Property() | reports.Measurement() | reports.Event():
            if report.value is UNSET or BUILTIN_CATALOGUE[each.identifier].layout is None:
                return report.value, None
            decoded = BUILTIN_CATALOGUE.decode(each.identifier, bytes.fromhex(report.value))
            return decoded.value, decoded.ext
    return report


def test_both_modes_tell_the_same_in_the_same_order() -> None:
    raw, decoded = generated_gateway(20, mode=Writing.RAW), generated_gateway(20, mode=Writing.DECODED)
    both = list(zip(raw.advance(HOUR), decoded.advance(HOUR), strict=True))
    assert len(both) > 3_000
    for one, other in both:
        assert (one.moment, one.series) == (other.moment, other.series)
        assert (one.report.time, one.report.seq) == (other.report.time, other.report.seq)
        assert said(one) == said(other)


def test_versions_tell_the_same_but_for_what_is_new() -> None:
    old, new = (
        generated_gateway(10, api_version=OLDEST_API_VERSION),
        generated_gateway(10, api_version=LATEST_VERSION),
    )
    for one, other in zip(old.advance(HOUR), new.advance(HOUR), strict=True):
        assert one.series == other.series
        if one.kind is not Kind.HEARTBEAT:
            assert one.report == other.report


@each_row(("version", "there"), [("1.2.0", False), ("1.3.0", True), ("2.4.0", True)])
def test_last_count_is_there_since_its_version(version: str, *, there: bool) -> None:
    world = generated_gateway(10, api_version=Version.parse(version))
    heartbeats = [each.report for each in world.advance(5 * MINUTE) if each.kind is Kind.HEARTBEAT]
    assert {each.last_count is not UNSET for each in heartbeats} == {there}


def test_last_count_tells_how_many_copies_of_the_heartbeat_before_were_heard() -> None:
    # So far away that now and then a copy is lost.
    world = SimulatedGateway([nearby_device(1, 20.0, code="0060")])
    told: list[tuple[int, int]] = []
    before: tuple[int, int] | None = None
    while len(told) < 200:
        world.advance(world.gateway.next_due - world.now)
        for each in select_reports(
            decode_reports(world.gateway, world.published), device_mac(1), Kind.HEARTBEAT
        ):
            seq = each.report.seq
            if before is not None:
                follows = seq == (before[0] + 1) % 256
                told.append((each.report.last_count, before[1] if follows else 0))
            before = seq, world.device(device_mac(1)).heard_copies
        world.published.clear()
    assert {count for count, _ in told} >= {1, 2, 3}
    assert [count for count, heard in told if count != heard] == []


def test_a_connected_device_has_all_its_heartbeats_heard() -> None:
    world = SimulatedGateway([nearby_device(1)])
    beats = select_reports(world.advance(HOUR), device_mac(1), Kind.HEARTBEAT)
    assert {each.report.last_count for each in beats} == {3}


@pytest.mark.rule("gateway-12")
@both_modes
def test_a_prefix_stands_in_front_of_every_topic(mode: Writing) -> None:
    plain = generated_gateway(5, mode=mode)
    prefixed = generated_gateway(5, mode=mode, topic_prefix="a/b")
    for one, other in zip(
        plain.advance_in_one_step(25 * MINUTE), prefixed.advance_in_one_step(25 * MINUTE), strict=True
    ):
        assert other.topic == f"a/b/{one.topic}"
        assert other.payload == one.payload


def test_the_gateway_counts_what_it_reports() -> None:
    world = generated_gateway(5)
    assert world.gateway.report_count == 0
    assert len(world.advance_in_one_step(HOUR)) == world.gateway.report_count
