"""Which samples are acknowledged, to which gateway, when and in which format."""

from __future__ import annotations

import asyncio
import json

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.requests import AckRequest, decode_request
from meshfleet.protocol.times import parse_time, to_millis
from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from tests.service.backfill.ack_harness import AckHarness, RecordingTransport, build_ack
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import (
    A,
    B,
    D,
    E,
    build_report,
    dfu,
    heartbeat,
    link,
    mac_to_number,
    prop,
    temperature,
)

pytestmark = pytest.mark.anyio

OLD = "02005e000009"
"""Gateway that is too old for acks."""


@pytest.mark.rule("ack-7", "ack-1", "ack-10")
@pytest.mark.parametrize(
    ("end", "value", "ack_end"),
    [
        ("measurement/8800", "0866", "ack/8800"),
        ("measurement/f00d", "00", "ack/f00d"),
        ("measurement-decoded/temperature", 21.5, "ack-decoded/temperature"),
        ("measurement-decoded/something-odd", {"a": [1]}, "ack-decoded/something-odd"),
        ("event/8810", "01", "ack/8810"),
        ("event-decoded/motion", 1, "ack-decoded/motion"),
    ],
)
async def test_measurements_and_events_are_acknowledged_in_their_own_form(
    sqlite_harness: AckHarness, end: str, value: object, ack_end: str
) -> None:
    sample = build_report(end, NOON + 7, seq=1, value=value)
    assert await sqlite_harness.commit(sample) == [build_ack(ack_end, NOON + 7)]


@pytest.mark.rule("ack-7")
async def test_no_other_report_is_acknowledged(sqlite_harness: AckHarness) -> None:
    other_reports = [
        heartbeat(NOON),
        link(NOON, -50),
        dfu(NOON),
        prop("8100", NOON, "64"),
        prop("battery-level", NOON, 100),
        build_report("property/8800", NOON, seq=1, value="0866"),
        build_report("measurement-error/8800", NOON, seq=3, error=8),
        build_report("measurement-error/temperature", NOON, seq=3, error=8),
    ]
    assert await sqlite_harness.commit(*other_reports) == []
    assert sqlite_harness.acknowledger.series == {}


@pytest.mark.rule("ack-8")
async def test_only_gateways_that_support_acks_receive_them(sqlite_harness: AckHarness) -> None:
    acknowledged, unacknowledged = temperature(NOON), temperature(NOON, gateway=OLD, device=E)
    assert await sqlite_harness.commit(unacknowledged, acknowledged, unacknowledged) == [
        build_ack("ack-decoded/temperature", NOON)
    ]
    assert len(await sqlite_harness.ingest_harness.samples(E)) == 1


@pytest.mark.rule("ack-8")
async def test_a_gateway_receives_acks_from_the_batch_after_its_version_is_known(
    sqlite_harness: AckHarness,
) -> None:
    assert await sqlite_harness.commit(temperature(NOON, gateway=OLD)) == []
    sqlite_harness.ingest_harness.acking_gateways.add(mac_to_number(OLD))
    acks = await sqlite_harness.commit(temperature(NOON + SECOND, gateway=OLD, seq=2))
    assert acks == [build_ack("ack-decoded/temperature", NOON + SECOND, gateway=OLD)]


@pytest.mark.rule("ack-10", "ack-2")
@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("2023-11-15T12:00:00Z", 0),
        ("2023-11-15T12:00:00", 0),
        ("2023-11-15T12:00:00.0009Z", 0),
        ("2023-11-15T12:00:00.999999Z", 999),
        ("2023-11-15T12:00:00.1Z", 100),
        ("2023-11-15T14:00:00.250+02:00", 250),
        ("20231115T120000.5Z", 500),
    ],
)
async def test_the_time_of_an_ack_is_truncated_to_milliseconds_in_our_format(
    sqlite_harness: AckHarness, text: str, millis: int
) -> None:
    topic = f"mt/gateway/{A}/device/{D}/measurement/8800"
    payload = f'{{"time":"{text}","seq":"3","value":"0866"}}'.encode()
    assert await sqlite_harness.commit(Publish(topic, payload, 1)) == [build_ack("ack/8800", NOON + millis)]
    (stored,) = await sqlite_harness.ingest_harness.samples()
    assert stored.time == NOON + millis


@pytest.mark.rule("ack-2", "ack-3")
async def test_a_sent_ack_can_be_decoded_by_gateways(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit(temperature(NOON + 7))
    (sent,) = sqlite_harness.transport.sent
    assert sent.payload == b'{"time":"2023-11-15T12:00:00.007Z","type":0}'
    ack = decode_request(Operation.ACK_DECODED, sent.payload)
    assert isinstance(ack, AckRequest)
    assert (to_millis(ack.time), ack.type) == (NOON + 7, 0)


async def test_acks_are_sent_below_the_topic_prefix(sqlite_harness: AckHarness) -> None:
    sqlite_harness.ingest_harness.ingest.subscribe(
        SampleAcknowledger(sqlite_harness.transport, prefix="site/7", now=NOON)
    )
    await sqlite_harness.commit(temperature(NOON))
    assert [message.topic for message in sqlite_harness.transport.sent] == [
        f"{prefix}mt/gateway/{A}/request/{D}/ack-decoded/temperature" for prefix in ("", "site/7/")
    ]


# --- After the commit ---


@pytest.mark.both_databases
@pytest.mark.rule("ack-9")
@pytest.mark.parametrize("failures", [1, 3])
async def test_nothing_is_acknowledged_while_the_database_fails(harness: AckHarness, failures: int) -> None:
    harness.ingest_harness.store.failures = failures
    for _ in range(failures):
        with pytest.raises(DatabaseUnavailable):
            await harness.commit(temperature(NOON))
        assert harness.transport.sent == []
        assert harness.acknowledger.series == {}
    assert await harness.commit(temperature(NOON)) == [build_ack("ack-decoded/temperature", NOON)]
    assert len(await harness.ingest_harness.samples()) == 1


@pytest.mark.both_databases
@pytest.mark.rule("ack-9")
async def test_a_sample_is_committed_before_its_ack_is_sent(harness: AckHarness) -> None:
    """Check when it is sent that another connection to the database reads the sample."""
    counts: list[int] = []

    class CountingTransport(RecordingTransport):
        def send(self, messages: object) -> None:  # noqa: ARG002 # only the time of the call matters
            query = (
                "SELECT count(*) FROM sample_journal"
                if harness.ingest_harness.database.is_sqlite
                else _COUNT_SAMPLES
            )
            counts.extend(
                harness.ingest_harness.database.read_now(
                    lambda connection: connection.exec_driver_sql(query).scalars().all()
                )
            )

    harness.ingest_harness.ingest.subscribe(SampleAcknowledger(CountingTransport(), prefix="", now=NOON))
    await harness.commit(temperature(NOON))
    assert counts == [1]


_COUNT_SAMPLES = "SELECT count(*) FROM sample"


@pytest.mark.both_databases
@pytest.mark.rule("ack-9")
async def test_only_reports_that_the_database_accepts_are_acknowledged(
    harness: AckHarness,
) -> None:
    harness.ingest_harness.store.refuses = lambda row: row[5] == 13.0
    acks = await harness.commit(
        temperature(NOON, seq=1), temperature(NOON + 1, 13.0, seq=2), temperature(NOON + 2, seq=3)
    )
    assert {ack.time[-4:] for ack in acks} == {"000Z", "002Z"}
    assert len(await harness.ingest_harness.samples()) == 2


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b'{"time":"2023-11-15T12:00:00.000Z","value":"0866"}',
        b'{"time":"2023-11-15T12:00:00.000Z","seq":256,"value":"0866"}',
        b'{"time":"2023-11-15T12:00:00.000Z","seq":1,"value":"086"}',
        b'{"time":"0001-01-01T00:00:00.000+14:00","seq":1,"value":"0866"}',
        b'{"time":"9999-12-31T23:59:59.999-14:00","seq":1,"value":"0866"}',
    ],
)
@pytest.mark.parametrize("end", ["measurement/8800", "event/8800"])
async def test_a_rejected_report_is_not_acknowledged(
    sqlite_harness: AckHarness, end: str, payload: bytes
) -> None:
    assert await sqlite_harness.commit(Publish(f"mt/gateway/{A}/device/{D}/{end}", payload, 1)) == []
    assert len(sqlite_harness.ingest_harness.rejects()) == 1
    assert sqlite_harness.acknowledger.series == {}


# --- Duplicates ---


async def test_a_repeated_sample_is_acknowledged_again_and_stored_once(harness: AckHarness) -> None:
    sample, ack = temperature(NOON), build_ack("ack-decoded/temperature", NOON)
    assert await harness.commit(sample, sample) == [ack, ack]
    assert await harness.commit(sample) == [ack]
    assert len(await harness.ingest_harness.samples()) == 1
    assert harness.series.gaps is None


@pytest.mark.both_databases
async def test_a_sample_through_two_gateways_is_acknowledged_to_both_and_stored_once(
    harness: AckHarness,
) -> None:
    raw, decoded = build_report("measurement/8800", NOON, seq=1, value="0866"), temperature(NOON, gateway=B)
    assert await harness.commit(raw, decoded) == [
        build_ack("ack/8800", NOON),
        build_ack("ack-decoded/temperature", NOON, gateway=B),
    ]
    assert len(await harness.ingest_harness.samples()) == 1
    assert len(harness.acknowledger.series) == 1


async def test_samples_that_alternate_between_two_gateways_make_no_gaps(sqlite_harness: AckHarness) -> None:
    types = [await sqlite_harness.commit_samples(index, gateway=(A, B)[index % 2]) for index in range(20)]
    assert types == [[0]] * 20
    assert (sqlite_harness.gaps, sqlite_harness.complete_up_to) == ([], 19)


# --- Clocks ---


@pytest.mark.parametrize(
    "time",
    [
        "2023-10-15T11:59:59.999Z",
        "2023-11-15T12:20:00.000Z",
        "1970-01-01T00:00:00.000Z",
        "1969-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00.000Z",
        "9999-12-31T23:59:59.999Z",
    ],
)
async def test_a_sample_with_an_implausible_time_is_acknowledged_and_ignored_in_its_series(
    harness: AckHarness, time: str
) -> None:
    payload = f'{{"time":"{time}","seq":77,"value":1.5}}'.encode()
    stray = Publish(temperature(NOON).topic, payload, 1)
    ack = build_ack("ack-decoded/temperature", NOON)._replace(time=time)
    assert await harness.commit(stray) == [ack]
    assert harness.acknowledger.series == {}
    assert len(await harness.ingest_harness.samples()) == 1
    assert await harness.commit_samples(0, 1) == [0, 0]
    assert await harness.commit(stray) == [ack]
    assert await harness.commit_samples(2) == [0]
    assert (harness.gaps, harness.complete_up_to) == ([], 2)


async def test_a_sample_with_an_implausible_time_fills_no_gap(harness: AckHarness) -> None:
    """Store a sample whose real time is unknown."""
    await harness.commit_samples(0, 2)
    harness.ingest_harness.now = NOON + 30 * DAY + 90 * SECOND  # too late for the sample in between
    await harness.commit(temperature(NOON + MINUTE, seq=1))
    await harness.check_gaps()
    assert harness.gaps == [(0, 2)]


@pytest.mark.rule("ack-9")
async def test_a_large_batch_is_acknowledged_in_slices_between_other_tasks(
    sqlite_harness: AckHarness,
) -> None:
    """Check that other tasks wait for a slice, not for the whole batch."""
    count = 1700
    messages = [temperature(NOON + index, seq=index % 256) for index in range(count)]
    turns: list[int] = []
    commit = asyncio.create_task(sqlite_harness.commit(*messages))
    while len(sqlite_harness.transport.sent) < count:
        await asyncio.sleep(0)
        turns.append(len(sqlite_harness.transport.sent))
    await commit
    assert {500, 1000, 1500, count} <= set(turns)
    assert [_ack_offset(message) for message in sqlite_harness.transport.sent] == list(range(count))


async def test_batches_wait_if_acks_are_sent_too_slowly(sqlite_harness: AckHarness) -> None:
    for start in range(0, 150_000, 30_000):
        batch = ParsedBatch(NOON, {mac_to_number(A)})
        batch.unacked_samples += [
            (mac_to_number(D), "ack/8800", (NOON, 1, 0x8800, 0, mac_to_number(A), 1.0, None, None))
        ] * 30_000
        sqlite_harness.acknowledger.on_commit(batch)
        assert start + 30_000 - len(sqlite_harness.transport.sent) <= 200 * 500
    while sqlite_harness.acknowledger.has_backlog:
        before = len(sqlite_harness.transport.sent)
        await asyncio.sleep(0)
        assert len(sqlite_harness.transport.sent) - before <= 500  # however many batches are waiting
    assert len(sqlite_harness.transport.sent) == 150_000


def _ack_offset(message: Publish) -> int:
    """Return the milliseconds after noon of the acknowledged sample."""
    return to_millis(parse_time(json.loads(message.payload)["time"])) - NOON
