"""Duplicate reports are stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import NO_SEQ, SampleKind
from meshfleet.mqtt.codec.packets import Publish
from tests.service.ingest.ingest_harness import NOON, IngestHarness
from tests.service.ingest.messages import B, E, build_report, mac_to_number, temperature

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.anyio

RAW = build_report("measurement/8800", NOON, value="0866", seq=4)
DECODED = build_report("measurement-decoded/temperature", NOON, value=21.5, seq=4)


@pytest.mark.rule("report-36")
async def test_a_repeated_report_is_stored_once(harness: IngestHarness) -> None:
    message = temperature(NOON)
    await harness.commit(message, message)
    await harness.commit(message)
    await harness.restart()
    await harness.commit(message)
    assert (await harness.sample()).number == 21.5


@pytest.mark.rule("report-36")
async def test_a_report_through_two_gateways_is_stored_once(harness: IngestHarness) -> None:
    await harness.commit(temperature(NOON))
    await harness.commit(temperature(NOON, gateway=B), temperature(NOON + 1, gateway=B))
    assert [sample.time for sample in await harness.samples()] == [NOON, NOON + 1]


@pytest.mark.rule("report-37")
@pytest.mark.parametrize("messages", [(RAW, DECODED), (DECODED, RAW)], ids=["raw first", "decoded first"])
async def test_raw_and_decoded_are_the_same_report(
    harness: IngestHarness, messages: Sequence[Publish]
) -> None:
    for message in messages:
        await harness.commit(message)
    sample = await harness.sample()
    assert (sample.kind, sample.identifier, sample.number) == (SampleKind.MEASUREMENT, 0x8800, 21.5)


@pytest.mark.rule("report-37")
async def test_raw_and_decoded_reports_are_one_series(harness: IngestHarness) -> None:
    await harness.commit(RAW, build_report("measurement-decoded/temperature", NOON + 1, value=21.6, seq=5))
    await harness.commit(
        build_report("measurement-error/8800", NOON, seq=6, error=1),
        build_report("measurement-error/temperature", NOON, seq=6, error=1),
        build_report("event/8113", NOON, seq=7),
        build_report("event-decoded/watchdog-reset-event", NOON, seq=7),
        build_report("property/8810", NOON, value="01"),
        build_report("property-decoded/motion", NOON, value=1),
    )
    identities = {
        (sample.time, sample.kind, sample.identifier, sample.seq) for sample in await harness.samples()
    }
    assert identities == {
        (NOON, SampleKind.MEASUREMENT, 0x8800, 4),
        (NOON + 1, SampleKind.MEASUREMENT, 0x8800, 5),
        (NOON, SampleKind.MEASUREMENT_ERROR, 0x8800, 6),
        (NOON, SampleKind.EVENT, 0x8113, 7),
        (NOON, SampleKind.PROPERTY, 0x8810, NO_SEQ),
    }


@pytest.mark.rule("report-35")
async def test_reports_that_differ_in_any_part_of_the_identity_are_stored(harness: IngestHarness) -> None:
    await harness.commit(
        build_report("measurement-decoded/temperature", NOON, value=1, seq=1),
        build_report("measurement-decoded/temperature", NOON, value=1, seq=2),
        build_report("measurement-decoded/temperature", NOON + 1, value=1, seq=1),
        build_report("measurement-decoded/humidity", NOON, value=1, seq=1),
        build_report("property-decoded/temperature", NOON, value=1, seq=1),
        build_report("property-decoded/temperature", NOON, value=1),
        build_report("measurement-decoded/temperature", NOON, value=1, seq=1, device=E),
    )
    assert len(await harness.samples()) == 6
    assert len(await harness.samples(E)) == 1
    assert sorted(sample.seq for sample in await harness.samples()) == [NO_SEQ, 1, 1, 1, 1, 2]


TIMES = ["2023-11-15T12:00:00.000Z", "2023-11-15T12:00:00.0009Z", "2023-11-15T13:00:00+01:00"]


@pytest.mark.rule("report-35")
async def test_times_are_compared_in_milliseconds(sqlite_harness: IngestHarness) -> None:
    for time in TIMES:
        payload = f'{{"time":"{time}","seq":"4","value":1}}'.encode()
        await sqlite_harness.commit(Publish(DECODED.topic, payload))
    sample = await sqlite_harness.sample()
    assert (sample.time, sample.seq) == (NOON, 4)
    assert sqlite_harness.ingest.counters.reports.total() == len(TIMES)


@pytest.mark.rule("report-36")
async def test_the_first_report_determines_the_gateway(harness: IngestHarness) -> None:
    await harness.commit(temperature(NOON, gateway=B))
    await harness.commit(temperature(NOON))
    assert (await harness.sample()).gateway == mac_to_number(B)
