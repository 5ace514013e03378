"""Rejected messages: counted, stored with the reason in a limited list, without affecting others."""

from __future__ import annotations

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.codec.packets import OversizedPublish, Publish
from meshfleet.service.ingest.rejects import MAX_REJECTS
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
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

pytestmark = pytest.mark.anyio

TOPIC = f"mt/gateway/{A}/device/{D}/heartbeat"
QUOTA = 30


def build_malformed(gateway: str = A, payload: bytes = b"{") -> Publish:
    return Publish(f"mt/gateway/{gateway}/device/{D}/heartbeat", payload, qos=1)


@pytest.mark.rule("report-29")
async def test_a_reject_is_stored_with_its_reason(harness: IngestHarness) -> None:
    await harness.commit(build_report("heartbeat", NOON - MINUTE, seq=256, status=0))
    (row,) = harness.rejects()
    assert (row.time, row.gateway, row.topic) == (NOON, mac_to_number(A), TOPIC)
    assert "seq" in row.reason
    assert row.payload == build_report("heartbeat", NOON - MINUTE, seq=256, status=0).payload
    assert harness.ingest.counters.rejects == {"malformed-payload": 1}
    assert harness.ingest.counters.reports == {}


@pytest.mark.rule("report-29")
async def test_the_stored_parts_of_a_reject_are_truncated(harness: IngestHarness) -> None:
    payload = bytes(range(256)) * 8
    await harness.commit(Publish("x/" * 3000 + "\U0001f600", payload))
    (row,) = harness.rejects()
    assert row.payload == payload[:1024]
    assert row.topic == ("x/" * 3000)[:1024]
    assert 0 < len(row.reason) <= 1024
    assert row.gateway is None


@pytest.mark.rule("report-30", "report-31")
async def test_rejects_do_not_affect_other_messages(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        build_malformed(),
        temperature(NOON),
        Publish("no/topic/of/ours", b""),
        heartbeat(NOON, 3),
        build_malformed(B, b"\xff\xfe"),
        temperature(NOON + 1),
    )
    assert len(await harness.samples()) == 2
    assert harness.state().status == 3
    assert len(harness.rejects()) == 3
    assert harness.ingest.counters.reports == {"measurement-decoded": 2, "heartbeat": 1}
    assert harness.ingest.counters.rejects == {"malformed-payload": 2, "malformed-topic": 1}


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
async def test_messages_on_other_topics_are_rejected(harness: IngestHarness) -> None:
    payload = heartbeat(NOON).payload
    for topic in FOREIGN:
        await harness.commit(Publish(topic, payload))
    harness.now += MINUTE
    await harness.commit(*(Publish(topic, payload) for topic in reversed(FOREIGN)), heartbeat(NOON))
    topics = [row.topic for row in harness.rejects()]
    assert topics == FOREIGN + FOREIGN[::-1]
    assert harness.ingest.counters.rejects.total() == 2 * len(FOREIGN)
    assert harness.ingest.counters.reports == {"heartbeat": 1}


@pytest.mark.rule("report-29")
async def test_an_oversized_message_is_rejected(harness: IngestHarness) -> None:
    await harness.commit(
        heartbeat(NOON), OversizedPublish(TOPIC, b"", qos=1, size=70_000), heartbeat(NOON + 1)
    )
    (row,) = harness.rejects()
    assert (row.topic, row.gateway, row.payload) == (TOPIC, mac_to_number(A), b"")
    assert "70000" in row.reason
    assert harness.ingest.counters.rejects == {"payload-too-large": 1}
    assert harness.ingest.counters.reports == {"heartbeat": 2}


async def test_a_payload_of_more_than_64_kib_is_rejected(sqlite_harness: IngestHarness) -> None:
    value = "x" * 66_000
    await sqlite_harness.commit(build_report("property-decoded/motion", NOON, value=value))
    (row,) = sqlite_harness.rejects()
    assert row.payload.startswith(b'{"time":"' + format_time(NOON).encode())
    assert len(row.payload) == 1024
    assert sqlite_harness.ingest.counters.rejects == {"payload-too-large": 1}


# --- Limits ---


@pytest.mark.rule("report-29")
async def test_a_faulty_gateway_does_not_displace_the_rejects_of_others(harness: IngestHarness) -> None:
    await harness.commit(build_malformed(B), *(build_malformed(A) for _ in range(100)), build_malformed(B))
    await harness.commit(
        *(build_malformed(A) for _ in range(100)), build_malformed(B), Publish("some/topic", b"")
    )
    gateways = [row.gateway for row in harness.rejects()]
    assert gateways.count(mac_to_number(A)) == QUOTA
    assert (gateways.count(mac_to_number(B)), gateways.count(None)) == (3, 1)
    assert harness.ingest.counters.rejects.total() == 204


async def test_the_quota_is_renewed_every_minute(sqlite_harness: IngestHarness) -> None:
    sqlite_harness.now = NOON + 59 * SECOND
    await sqlite_harness.commit(*(build_malformed() for _ in range(40)))
    sqlite_harness.now = NOON + MINUTE
    await sqlite_harness.commit(*(build_malformed() for _ in range(40)))
    await sqlite_harness.commit(*(build_malformed() for _ in range(40)))
    assert len(sqlite_harness.rejects()) == 2 * QUOTA


async def test_rejects_without_a_gateway_share_a_quota(sqlite_harness: IngestHarness) -> None:
    await sqlite_harness.commit(*(Publish(f"some/topic/{index}", b"") for index in range(50)))
    assert [row.topic for row in sqlite_harness.rejects()] == [
        f"some/topic/{index}" for index in range(QUOTA)
    ]


@pytest.mark.rule("report-29")
async def test_the_number_of_stored_rejects_is_limited(harness: IngestHarness) -> None:
    gateways = [f"{mac_to_number(A) + index:012x}" for index in range(MAX_REJECTS // QUOTA + 10)]
    await harness.commit(*(build_malformed(gateway) for gateway in gateways for _ in range(QUOTA)))
    assert len(harness.rejects()) == QUOTA * len(gateways) > MAX_REJECTS
    await harness.ingest.flush()
    stored = harness.rejects()
    assert len(stored) == MAX_REJECTS
    assert stored[-1].gateway == mac_to_number(gateways[-1])
    await harness.commit_flushed(build_malformed("ffffffffffff"))
    stored = harness.rejects()
    assert (len(stored), stored[-1].gateway) == (MAX_REJECTS, 0xFFFFFFFFFFFF)


async def test_a_failed_batch_does_not_use_the_quota(harness: IngestHarness) -> None:
    messages = [build_malformed() for _ in range(QUOTA)]
    for _ in range(3):
        harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await harness.commit(*messages)
        assert harness.rejects() == []
        assert harness.ingest.counters.rejects == {}
    await harness.commit(*messages)
    assert len(harness.rejects()) == QUOTA
