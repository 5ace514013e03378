"""When an ack requests missing samples."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from tests.service.backfill.ack_harness import TEMPERATURE, AckHarness, RecordingTransport
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, E, mac_to_number, temperature

pytestmark = pytest.mark.anyio

HOUR = 60 * MINUTE


@pytest.mark.rule("ack-13", "ack-12")
async def test_a_series_without_gaps_gets_only_acks_of_type_0(
    sqlite_harness: AckHarness,
) -> None:
    assert [await sqlite_harness.commit_samples(index) for index in range(250, 270)] == [[0]] * 20


@pytest.mark.rule("ack-11", "ack-13")
async def test_the_first_gap_of_a_new_series_is_requested_at_once(sqlite_harness: AckHarness) -> None:
    sqlite_harness.ingest_harness.now = NOON + MINUTE
    assert await sqlite_harness.commit(temperature(NOON, seq=1)) != []
    (ack,) = await sqlite_harness.commit(temperature(NOON + SECOND, seq=3))
    assert ack.type == 1


@pytest.mark.rule("ack-13")
async def test_every_series_starts_with_type_0_whatever_its_seq(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 2)
    assert await sqlite_harness.commit_samples(77, device=E) == [0]


@pytest.mark.rule("ack-12")
async def test_type_1_is_sent_at_most_once_per_minute_and_series(sqlite_harness: AckHarness) -> None:
    """Send samples that all show a gap."""
    for device in (D, E):
        types = []
        for index in range(130):
            sqlite_harness.ingest_harness.now = NOON + index * SECOND
            (ack,) = await sqlite_harness.commit(
                temperature(sqlite_harness.ingest_harness.now, device=device, seq=2 * index % 256)
            )
            types.append(ack.type)
        assert [index for index, type_ in enumerate(types) if type_] == [1, 61, 121]


@pytest.mark.rule("ack-11", "ack-12", "ack-25")
async def test_an_open_gap_is_requested_again_at_growing_intervals(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0)
    requests = [index for index in range(2, 200) if await sqlite_harness.commit_samples(index) == [1]]
    intervals = [after - before for before, after in pairwise(requests)]
    assert requests[0] == 2
    assert intervals == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.rule("ack-11")
async def test_a_lost_gap_is_not_requested(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 2)
    sqlite_harness.ingest_harness.now += HOUR
    await sqlite_harness.check_gaps()
    assert (sqlite_harness.series.unfilled, sqlite_harness.gaps) == (1, [(0, 2)])
    assert [await sqlite_harness.commit_samples(index) for index in range(3, 200)] == [[0]] * 197


@pytest.mark.rule("ack-11")
async def test_a_new_gap_does_not_wait_for_an_unfilled_one(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 2)
    for index in range(3, 40):
        await sqlite_harness.commit_samples(index)
    assert sqlite_harness.series.backfill_interval > 10 * MINUTE
    assert await sqlite_harness.commit_samples(40) == [0]
    assert await sqlite_harness.commit_samples(42) == [1]


@pytest.mark.rule("ack-11", "ack-12")
async def test_nothing_is_requested_between_a_filled_gap_and_the_next_one(sqlite_harness: AckHarness) -> None:
    assert await sqlite_harness.commit_samples(0, 5) == [0, 1]
    assert await sqlite_harness.commit_samples(4, 3, 2, 1) == [0] * 4
    await sqlite_harness.check_gaps()
    assert [await sqlite_harness.commit_samples(index) for index in range(6, 20)] == [[0]] * 14
    assert await sqlite_harness.commit_samples(21) == [1]


@pytest.mark.rule("ack-21")
async def test_backfilled_samples_are_acknowledged_with_type_0(sqlite_harness: AckHarness) -> None:
    assert await sqlite_harness.commit_samples(0, 100) == [0, 1]
    sqlite_harness.ingest_harness.now += 2 * HOUR  # another request would be allowed
    assert await sqlite_harness.commit_samples(*range(99, 0, -3)) == [0] * 33


# --- After an outage of the service ---


@pytest.mark.rule("ack-11")
async def test_after_a_start_the_next_sample_of_each_known_series_requests_a_backfill_once(
    harness: AckHarness,
) -> None:
    await harness.commit_samples(0, 1)
    await harness.commit_samples(0, 1, device=E)
    await harness.ingest_harness.ingest.flush()
    await harness.restart()
    assert [await harness.commit_samples(2), await harness.commit_samples(2, device=E)] == [[1], [1]]
    assert [await harness.commit_samples(3), await harness.commit_samples(3, device=E)] == [[0], [0]]
    assert harness.acknowledger.counts.backfills == 2


@pytest.mark.rule("ack-13", "ack-11")
async def test_after_a_start_a_new_series_starts_with_type_0(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 1)
    await sqlite_harness.ingest_harness.ingest.flush()
    await sqlite_harness.restart()
    assert [await sqlite_harness.commit_samples(index, device=E) for index in range(5)] == [[0]] * 5


@pytest.mark.rule("ack-11", "ack-21")
async def test_after_a_start_the_first_newer_sample_requests_a_backfill(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0, 3)
    await sqlite_harness.ingest_harness.ingest.flush()
    await sqlite_harness.restart()
    assert await sqlite_harness.commit_samples(2, 1, 3) == [0, 0, 0]
    assert await sqlite_harness.commit_samples(4) == [1]


# --- After a gateway was offline ---


@pytest.mark.rule("ack-11", "ack-12", "ack-24")
async def test_after_a_reconnect_of_its_gateway_each_series_requests_a_backfill_once(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0, 1)
    await sqlite_harness.commit_samples(0, 1, device=E, gateway=B)
    sqlite_harness.acknowledger.record_gateway_connection(
        mac_to_number(A), sqlite_harness.ingest_harness.now + 5 * SECOND
    )
    assert await sqlite_harness.commit_samples(2, device=E, gateway=B) == [0]
    assert [await sqlite_harness.commit_samples(index) for index in (2, 3, 4, 5)] == [[1], [0], [0], [0]]


async def test_a_series_that_starts_while_a_connection_is_noticed_requests_nothing(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0)
    sqlite_harness.acknowledger.record_gateway_connection(
        mac_to_number(A), sqlite_harness.ingest_harness.now + SECOND - 1
    )
    assert [await sqlite_harness.commit_samples(index) for index in (1, 2, 3)] == [[0]] * 3


@pytest.mark.rule("ack-12")
async def test_a_gateway_that_reconnects_constantly_is_sent_one_request_per_minute(
    sqlite_harness: AckHarness,
) -> None:
    requests = []
    for index in range(130):
        sqlite_harness.ingest_harness.now = NOON + index * 5 * SECOND
        (ack,) = await sqlite_harness.commit(temperature(sqlite_harness.ingest_harness.now, seq=index % 256))
        if ack.type:
            requests.append(index * 5)
        sqlite_harness.acknowledger.record_gateway_connection(
            mac_to_number(A), sqlite_harness.ingest_harness.now + 2 * SECOND
        )
    assert requests[0] == 5
    assert [after - before for before, after in pairwise(requests)] == [60] * (len(requests) - 1)
    assert len(requests) == 11


async def test_a_reconnect_requests_a_backfill_despite_an_unfilled_gap(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0, 2)
    for index in range(3, 40):
        await sqlite_harness.commit_samples(index)
    sqlite_harness.acknowledger.record_gateway_connection(
        mac_to_number(A), sqlite_harness.ingest_harness.now + 5 * SECOND
    )
    assert (
        sqlite_harness.ingest_harness.now - sqlite_harness.series.requested_at
        < sqlite_harness.series.backfill_interval - 2 * MINUTE
    )
    assert await sqlite_harness.commit_samples(40) == [1]


@pytest.mark.parametrize(("other_gateways", "type_"), [(49_999, 1), (50_000, 0)])
async def test_the_number_of_remembered_reconnects_is_limited(
    sqlite_harness: AckHarness, other_gateways: int, type_: int
) -> None:
    await sqlite_harness.commit_samples(0, 1)
    for gateway in (mac_to_number(A), *range(other_gateways)):
        sqlite_harness.acknowledger.record_gateway_connection(
            gateway, sqlite_harness.ingest_harness.now + 5 * SECOND
        )
    assert await sqlite_harness.commit_samples(2) == [type_]


async def test_a_series_without_gap_checks_requests_a_backfill_after_an_outage(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0)
    sqlite_harness.series.unfilled = 3
    assert await sqlite_harness.commit_samples(2) == [0]
    sqlite_harness.acknowledger.record_gateway_connection(
        mac_to_number(A), sqlite_harness.ingest_harness.now + 5 * SECOND
    )
    assert await sqlite_harness.commit_samples(9) == [1]


# --- Any sequence of samples ---

steps = st.tuples(
    st.integers(0, 40),
    st.integers(0, 255),
    st.sampled_from([A, B]),
    st.integers(0, 90),
    st.booleans(),
)


@pytest.mark.rule("ack-12", "ack-13", "ack-14", "ack-21")
@given(st.lists(steps, max_size=80))
def test_type_2_is_never_sent_and_type_1_at_most_once_per_minute(
    sequence: list[tuple[int, int, str, int, bool]],
) -> None:
    transport, now = RecordingTransport(), NOON + SECOND
    acknowledger, newest, requested_at = SampleAcknowledger(transport, prefix="", now=NOON), -1, NOON - HOUR
    for offset, seq, gateway, seconds, has_reconnected in sequence:
        now += seconds * SECOND
        if has_reconnected:
            acknowledger.record_gateway_connection(mac_to_number(gateway), now)
        batch = ParsedBatch(now, {mac_to_number(gateway)})
        row = (NOON + offset, TEMPERATURE[1], TEMPERATURE[2], seq, mac_to_number(gateway), None, None, None)
        batch.unacked_samples.append((TEMPERATURE[0], "ack/8800", row))
        transport.sent.clear()
        acknowledger.on_commit(batch)
        (message,) = transport.sent
        if message.payload.endswith(b'"type":1}'):
            assert offset > newest >= 0
            assert now - requested_at >= MINUTE
            requested_at = now
        else:
            assert message.payload.endswith(b'"type":0}')
        newest = max(newest, offset)


async def test_two_samples_of_the_same_millisecond_are_no_gap(sqlite_harness: AckHarness) -> None:
    """Check both orders of arrival."""
    assert [
        ack.type for ack in await sqlite_harness.commit(temperature(NOON, seq=7), temperature(NOON, seq=8))
    ] == [
        0,
        0,
    ]
    later = [temperature(NOON + SECOND, seq=10), temperature(NOON + SECOND, seq=9)]
    sqlite_harness.ingest_harness.now += MINUTE
    await sqlite_harness.commit(*later, temperature(NOON + 2 * SECOND, seq=11))
    await sqlite_harness.check_gaps()
    assert sqlite_harness.series.gaps is None
    assert sqlite_harness.complete_up_to == 2 * SECOND / MINUTE
