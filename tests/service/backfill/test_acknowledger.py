"""Which samples are acknowledged, to whom, when, and how that is spelt."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.requests import AckRequest as Asked
from meshfleet.protocol.requests import decode_request
from meshfleet.protocol.times import parse_time, to_millis
from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from tests.service.backfill.ack_harness import RecordingTransport, build_ack
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

if TYPE_CHECKING:
    from tests.service.backfill.ack_harness import AckHarness

pytestmark = pytest.mark.anyio

OLD = "02005e000009"
"""A gateway that is too old for acknowledgements."""


@pytest.mark.rule("ack-7", "ack-1", "ack-10")
@pytest.mark.parametrize(
    ("end", "value", "acked"),
    [
        ("measurement/8800", "0866", "ack/8800"),
        ("measurement/f00d", "00", "ack/f00d"),
        ("measurement-decoded/temperature", 21.5, "ack-decoded/temperature"),
        ("measurement-decoded/something-odd", {"a": [1]}, "ack-decoded/something-odd"),
        ("event/8810", "01", "ack/8810"),
        ("event-decoded/motion", 1, "ack-decoded/motion"),
    ],
)
async def test_measurements_and_events_are_acknowledged_as_they_came(
    in_file: AckHarness, end: str, value: object, acked: str
) -> None:
    sample = build_report(end, NOON + 7, seq=1, value=value)
    assert await in_file.commit(sample) == [build_ack(acked, NOON + 7)]


@pytest.mark.rule("ack-7")
async def test_no_other_report_is_acknowledged(in_file: AckHarness) -> None:
    others = [
        heartbeat(NOON),
        link(NOON, -50),
        dfu(NOON),
        prop("8100", NOON, "64"),
        prop("battery-level", NOON, 100),
        build_report("property/8800", NOON, seq=1, value="0866"),
        build_report("measurement-error/8800", NOON, seq=3, error=8),
        build_report("measurement-error/temperature", NOON, seq=3, error=8),
    ]
    assert await in_file.commit(*others) == []
    assert in_file.acknowledger.series == {}


@pytest.mark.rule("ack-8")
async def test_only_gateways_that_know_acks_get_any(in_file: AckHarness) -> None:
    mine, theirs = temperature(NOON), temperature(NOON, gateway=OLD, device=E)
    assert await in_file.commit(theirs, mine, theirs) == [build_ack("ack-decoded/temperature", NOON)]
    assert len(await in_file.ingest_harness.samples(E)) == 1


@pytest.mark.rule("ack-8")
async def test_a_gateway_that_has_told_its_version_gets_acks_from_the_next_batch_on(
    in_file: AckHarness,
) -> None:
    assert await in_file.commit(temperature(NOON, gateway=OLD)) == []
    in_file.ingest_harness.ingest.acking_gateways.add(mac_to_number(OLD))
    told = await in_file.commit(temperature(NOON + SECOND, gateway=OLD, seq=2))
    assert told == [build_ack("ack-decoded/temperature", NOON + SECOND, gateway=OLD)]


@pytest.mark.rule("ack-10", "ack-2")
@pytest.mark.parametrize(
    ("spelt", "millis"),
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
async def test_the_time_of_an_ack_is_cut_to_milliseconds_and_spelt_as_ours(
    in_file: AckHarness, spelt: str, millis: int
) -> None:
    topic = f"mt/gateway/{A}/device/{D}/measurement/8800"
    payload = f'{{"time":"{spelt}","seq":"3","value":"0866"}}'.encode()
    assert await in_file.commit(Publish(topic, payload, 1)) == [build_ack("ack/8800", NOON + millis)]
    (stored,) = await in_file.ingest_harness.samples()
    assert stored.time == NOON + millis


@pytest.mark.rule("ack-2", "ack-3")
async def test_what_is_sent_is_an_ack_as_gateways_read_it(in_file: AckHarness) -> None:
    await in_file.commit(temperature(NOON + 7))
    (sent,) = in_file.transport.sent
    assert sent.payload == b'{"time":"2023-11-15T12:00:00.007Z","type":0}'
    read = decode_request(Operation.ACK_DECODED, sent.payload)
    assert isinstance(read, Asked)
    assert (to_millis(read.time), read.type) == (NOON + 7, 0)


async def test_below_a_prefix_acks_go_there_too(in_file: AckHarness) -> None:
    in_file.ingest_harness.ingest.subscribe(SampleAcknowledger(in_file.transport, prefix="site/7", now=NOON))
    await in_file.commit(temperature(NOON))
    assert [each.topic for each in in_file.transport.sent] == [
        f"{front}mt/gateway/{A}/request/{D}/ack-decoded/temperature" for front in ("", "site/7/")
    ]


# --- After the commit ---


@pytest.mark.both_databases
@pytest.mark.rule("ack-9")
@pytest.mark.parametrize("failures", [1, 3])
async def test_nothing_is_acknowledged_while_the_database_fails(ground: AckHarness, failures: int) -> None:
    ground.ingest_harness.store.failures = failures
    for _ in range(failures):
        with pytest.raises(DatabaseUnavailable):
            await ground.commit(temperature(NOON))
        assert ground.transport.sent == []
        assert ground.acknowledger.series == {}
    assert await ground.commit(temperature(NOON)) == [build_ack("ack-decoded/temperature", NOON)]
    assert len(await ground.ingest_harness.samples()) == 1


@pytest.mark.both_databases
@pytest.mark.rule("ack-9")
async def test_whoever_hears_an_ack_finds_the_sample(ground: AckHarness) -> None:
    """At the moment that it is sent, another connection to the database has it."""
    found: list[int] = []

    class Looking(RecordingTransport):
        def send(self, messages: object) -> None:  # noqa: ARG002 # only when matters
            query = (
                "SELECT count(*) FROM sample_journal" if ground.ingest_harness.database.is_sqlite else COUNTED
            )
            found.extend(
                ground.ingest_harness.database.read_now(
                    lambda connection: connection.exec_driver_sql(query).scalars().all()
                )
            )

    ground.ingest_harness.ingest.subscribe(SampleAcknowledger(Looking(), prefix="", now=NOON))
    await ground.commit(temperature(NOON))
    assert found == [1]


COUNTED = "SELECT count(*) FROM sample"


@pytest.mark.both_databases
@pytest.mark.rule("ack-9")
async def test_a_report_that_the_database_refuses_is_not_acknowledged_and_others_are(
    ground: AckHarness,
) -> None:
    ground.ingest_harness.store.refuses = lambda row: row[5] == 13.0
    told = await ground.commit(
        temperature(NOON, seq=1), temperature(NOON + 1, 13.0, seq=2), temperature(NOON + 2, seq=3)
    )
    assert {each.time[-4:] for each in told} == {"000Z", "002Z"}
    assert len(await ground.ingest_harness.samples()) == 2


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
async def test_what_is_rejected_is_not_acknowledged(in_file: AckHarness, end: str, payload: bytes) -> None:
    assert await in_file.commit(Publish(f"mt/gateway/{A}/device/{D}/{end}", payload, 1)) == []
    assert len(in_file.ingest_harness.rejects()) == 1
    assert in_file.acknowledger.series == {}


# --- More than once ---


async def test_a_sample_that_comes_again_is_acknowledged_again_and_stored_once(ground: AckHarness) -> None:
    sample, acked = temperature(NOON), build_ack("ack-decoded/temperature", NOON)
    assert await ground.commit(sample, sample) == [acked, acked]
    assert await ground.commit(sample) == [acked]
    assert len(await ground.ingest_harness.samples()) == 1
    assert ground.series.gaps is None


@pytest.mark.both_databases
async def test_a_sample_through_two_gateways_is_acknowledged_to_both_and_stored_once(
    ground: AckHarness,
) -> None:
    raw, decoded = build_report("measurement/8800", NOON, seq=1, value="0866"), temperature(NOON, gateway=B)
    assert await ground.commit(raw, decoded) == [
        build_ack("ack/8800", NOON),
        build_ack("ack-decoded/temperature", NOON, gateway=B),
    ]
    assert len(await ground.ingest_harness.samples()) == 1
    assert len(ground.acknowledger.series) == 1


async def test_two_gateways_that_bring_a_series_in_turn_make_no_holes(in_file: AckHarness) -> None:
    told = [await in_file.commit_samples(each, gateway=(A, B)[each % 2]) for each in range(20)]
    assert told == [[0]] * 20
    assert (in_file.gaps, in_file.complete_up_to) == ([], 19)


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
async def test_a_sample_whose_clock_is_not_believed_is_acknowledged_and_tells_nothing_of_the_series(
    ground: AckHarness, time: str
) -> None:
    payload = f'{{"time":"{time}","seq":77,"value":1.5}}'.encode()
    stray = Publish(temperature(NOON).topic, payload, 1)
    acked = build_ack("ack-decoded/temperature", NOON)._replace(time=time)
    assert await ground.commit(stray) == [acked]
    assert ground.acknowledger.series == {}
    assert len(await ground.ingest_harness.samples()) == 1
    assert await ground.commit_samples(0, 1) == [0, 0]
    assert await ground.commit(stray) == [acked]
    assert await ground.commit_samples(2) == [0]
    assert (ground.gaps, ground.complete_up_to) == ([], 2)


async def test_a_sample_that_is_not_believed_fills_no_hole(ground: AckHarness) -> None:
    """It is stored, but nobody knows when it was made."""
    await ground.commit_samples(0, 2)
    ground.ingest_harness.now = NOON + 30 * DAY + 90 * SECOND  # too late for the sample in between
    await ground.commit(temperature(NOON + MINUTE, seq=1))
    await ground.check_gaps()
    assert ground.gaps == [(0, 2)]


@pytest.mark.rule("ack-9")
async def test_a_large_batch_is_acknowledged_in_portions_and_others_have_their_turn(
    in_file: AckHarness,
) -> None:
    """Whoever waits for the event loop waits for a portion, not for the batch."""
    count = 1700
    messages = [temperature(NOON + each, seq=each % 256) for each in range(count)]
    turns: list[int] = []
    taking = asyncio.create_task(in_file.commit(*messages))
    while len(in_file.transport.sent) < count:
        await asyncio.sleep(0)
        turns.append(len(in_file.transport.sent))
    await taking
    assert {500, 1000, 1500, count} <= set(turns)
    assert [_ms(each) for each in in_file.transport.sent] == list(range(count))


async def test_batches_that_come_faster_than_acks_go_out_wait_for_them(in_file: AckHarness) -> None:
    for start in range(0, 300_000, 30_000):
        draft = ParsedBatch(NOON, {mac_to_number(A)})
        draft.unacked_samples += [
            (mac_to_number(D), "ack/8800", (NOON, 1, 0x8800, 0, mac_to_number(A), 1.0, None, None))
        ] * 30_000
        in_file.acknowledger.on_commit(draft)
        assert start + 30_000 - len(in_file.transport.sent) <= 200 * 500
    while in_file.acknowledger.has_backlog:
        before = len(in_file.transport.sent)
        await asyncio.sleep(0)
        assert len(in_file.transport.sent) - before <= 500  # however many batches there were
    assert len(in_file.transport.sent) == 300_000


def _ms(message: Publish) -> int:
    """Milliseconds after noon of the sample that is acknowledged."""
    return to_millis(parse_time(json.loads(message.payload)["time"])) - NOON
