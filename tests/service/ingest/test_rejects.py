"""What cannot be taken: counted, kept with the reason in a bounded list, and in nobody's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.codec.packets import OversizedPublish, Publish
from meshfleet.service.ingest.rejects import MAX_REJECTS
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND
from tests.service.ingest.messages import (
    A,
    B,
    D,
    build_report,
    format_time,
    heartbeat,
    mac_to_number,
    temperature,
)

if TYPE_CHECKING:
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

TOPIC = f"mt/gateway/{A}/device/{D}/heartbeat"
QUOTA = 30


def broken(gateway: str = A, payload: bytes = b"{") -> Publish:
    return Publish(f"mt/gateway/{gateway}/device/{D}/heartbeat", payload, qos=1)


@pytest.mark.rule("report-29")
async def test_a_reject_is_kept_with_its_reason(intake: IngestHarness) -> None:
    await intake.commit(build_report("heartbeat", NOON - MINUTE, seq=256, status=0))
    (row,) = intake.rejects()
    assert (row.time, row.gateway, row.topic) == (NOON, mac_to_number(A), TOPIC)
    assert "seq" in row.reason
    assert row.payload == build_report("heartbeat", NOON - MINUTE, seq=256, status=0).payload
    assert intake.ingest.counters.rejects == {"malformed-payload": 1}
    assert intake.ingest.counters.reports == {}


@pytest.mark.rule("report-29")
async def test_what_is_kept_of_a_reject_is_short(intake: IngestHarness) -> None:
    payload = bytes(range(256)) * 8
    await intake.commit(Publish("x/" * 3000 + "\U0001f600", payload))
    (row,) = intake.rejects()
    assert row.payload == payload[:1024]
    assert row.topic == ("x/" * 3000)[:1024]
    assert 0 < len(row.reason) <= 1024
    assert row.gateway is None


@pytest.mark.rule("report-30", "report-31")
async def test_rejects_stop_nobody(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        broken(),
        temperature(NOON),
        Publish("no/topic/of/ours", b""),
        heartbeat(NOON, 3),
        broken(B, b"\xff\xfe"),
        temperature(NOON + 1),
    )
    assert len(await intake.samples()) == 2
    assert intake.state().status == 3
    assert len(intake.rejects()) == 3
    assert intake.ingest.counters.reports == {"measurement-decoded": 2, "heartbeat": 1}
    assert intake.ingest.counters.rejects == {"malformed-payload": 2, "malformed-topic": 1}


FOREIGN = [
    f"mt/gateway/{A}/request/{D}/read/8800",
    f"mt/gateway/{A}/response/{D}/read/8800",
    f"mt/gateways/request/{D}/read/8800",
    f"mt/gateway/{A}/device/{D}",
    f"mt/gateway/{A}/device/{D}/",
    f"mt/gateway/{A}/device/{D}/heartbeat/8800",
    f"mt/gateway/{A}/device/{D}/measurement",
    f"mt/gateway/{A}/device/{D}/measurement/880",
    f"mt/gateway/{A}/device/{D}/measurement-error/no-such-name",
    f"mt/gateway/{A}/device/{D}/no-such-kind",
    f"mt/gateway/{A.upper()}/device/{D}/heartbeat",
    f"mt/gateway/{A}/device/{D.upper()}/heartbeat",
    f"a-prefix/{TOPIC}",
    f"/{TOPIC}",
    "meshtech/diagnostics",
    "$SYS/broker",
    "x",
]


@pytest.mark.rule("report-29", "report-30")
async def test_other_topics_are_rejects(intake: IngestHarness) -> None:
    payload = heartbeat(NOON).payload
    for topic in FOREIGN:
        await intake.commit(Publish(topic, payload))
    intake.now += MINUTE
    await intake.commit(*(Publish(topic, payload) for topic in reversed(FOREIGN)), heartbeat(NOON))
    kept = [row.topic for row in intake.rejects()]
    assert kept == FOREIGN + FOREIGN[::-1]
    assert intake.ingest.counters.rejects.total() == 2 * len(FOREIGN)
    assert intake.ingest.counters.reports == {"heartbeat": 1}


@pytest.mark.rule("report-29")
async def test_a_message_that_was_too_large_is_a_reject(intake: IngestHarness) -> None:
    await intake.commit(
        heartbeat(NOON), OversizedPublish(TOPIC, b"", qos=1, size=70_000), heartbeat(NOON + 1)
    )
    (row,) = intake.rejects()
    assert (row.topic, row.gateway, row.payload) == (TOPIC, mac_to_number(A), b"")
    assert "70000" in row.reason
    assert intake.ingest.counters.rejects == {"payload-too-large": 1}
    assert intake.ingest.counters.reports == {"heartbeat": 2}


async def test_a_payload_of_more_than_64_kib_is_a_reject_too(in_file: IngestHarness) -> None:
    value = "x" * 66_000
    await in_file.commit(build_report("property-decoded/motion", NOON, value=value))
    (row,) = in_file.rejects()
    assert row.payload.startswith(b'{"time":"' + format_time(NOON).encode())
    assert len(row.payload) == 1024
    assert in_file.ingest.counters.rejects == {"payload-too-large": 1}


# --- Limits ---


@pytest.mark.rule("report-29")
async def test_a_noisy_gateway_does_not_push_out_the_rejects_of_others(intake: IngestHarness) -> None:
    await intake.commit(broken(B), *(broken(A) for _ in range(100)), broken(B))
    await intake.commit(*(broken(A) for _ in range(100)), broken(B), Publish("of/nobody", b""))
    gateways = [row.gateway for row in intake.rejects()]
    assert gateways.count(mac_to_number(A)) == QUOTA
    assert (gateways.count(mac_to_number(B)), gateways.count(None)) == (3, 1)
    assert intake.ingest.counters.rejects.total() == 204


async def test_in_the_next_minute_there_is_room_again(in_file: IngestHarness) -> None:
    in_file.now = NOON + 59 * SECOND
    await in_file.commit(*(broken() for _ in range(40)))
    in_file.now = NOON + MINUTE
    await in_file.commit(*(broken() for _ in range(40)))
    await in_file.commit(*(broken() for _ in range(40)))
    assert len(in_file.rejects()) == 2 * QUOTA


async def test_those_without_a_gateway_share_a_quota(in_file: IngestHarness) -> None:
    await in_file.commit(*(Publish(f"some/topic/{place}", b"") for place in range(50)))
    assert [row.topic for row in in_file.rejects()] == [f"some/topic/{place}" for place in range(QUOTA)]


@pytest.mark.rule("report-29")
async def test_the_list_is_bounded(intake: IngestHarness) -> None:
    gateways = [f"{mac_to_number(A) + place:012x}" for place in range(MAX_REJECTS // QUOTA + 10)]
    await intake.commit(*(broken(gateway) for gateway in gateways for _ in range(QUOTA)))
    assert len(intake.rejects()) == QUOTA * len(gateways) > MAX_REJECTS
    await intake.ingest.flush()
    kept = intake.rejects()
    assert len(kept) == MAX_REJECTS
    assert kept[-1].gateway == mac_to_number(gateways[-1])
    await intake.commit_flushed(broken("ffffffffffff"))
    kept = intake.rejects()
    assert (len(kept), kept[-1].gateway) == (MAX_REJECTS, 0xFFFFFFFFFFFF)


async def test_a_batch_that_fails_takes_nothing_from_the_quota(intake: IngestHarness) -> None:
    messages = [broken() for _ in range(QUOTA)]
    for _ in range(3):
        intake.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await intake.commit(*messages)
        assert intake.rejects() == []
        assert intake.ingest.counters.rejects == {}
    await intake.commit(*messages)
    assert len(intake.rejects()) == QUOTA
