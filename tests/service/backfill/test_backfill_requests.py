"""When an ack asks for what is missing."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from tests.service.backfill.ack_harness import TEMPERATURE, RecordingTransport
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, E, mac_to_number, temperature

if TYPE_CHECKING:
    from tests.service.backfill.ack_harness import AckHarness

pytestmark = pytest.mark.anyio

HOUR = 60 * MINUTE


@pytest.mark.rule("ack-13", "ack-12")
async def test_a_series_begins_with_type_0_and_goes_on_so_while_nothing_is_missing(
    in_file: AckHarness,
) -> None:
    assert [await in_file.commit_samples(each) for each in range(250, 270)] == [[0]] * 20


@pytest.mark.rule("ack-11", "ack-13")
async def test_the_first_hole_of_a_new_series_is_asked_for_at_once(in_file: AckHarness) -> None:
    in_file.ingest_harness.now = NOON + MINUTE
    assert await in_file.commit(temperature(NOON, seq=1)) != []
    (told,) = await in_file.commit(temperature(NOON + SECOND, seq=3))
    assert told.type == 1


@pytest.mark.rule("ack-13")
async def test_every_series_begins_with_type_0_whatever_its_number(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 2)
    assert await in_file.commit_samples(77, device=E) == [0]


@pytest.mark.rule("ack-12")
async def test_type_1_is_sent_at_most_once_per_minute_and_series(in_file: AckHarness) -> None:
    """Every sample shows a hole here."""
    for device in (D, E):
        types = []
        for each in range(130):
            in_file.ingest_harness.now = NOON + each * SECOND
            (told,) = await in_file.commit(
                temperature(in_file.ingest_harness.now, device=device, seq=2 * each % 256)
            )
            types.append(told.type)
        assert [each for each, type_ in enumerate(types) if type_] == [1, 61, 121]


@pytest.mark.rule("ack-11", "ack-12", "ack-25")
async def test_a_hole_that_stays_open_is_asked_for_again_after_growing_pauses(in_file: AckHarness) -> None:
    await in_file.commit_samples(0)
    told = [each for each in range(2, 200) if await in_file.commit_samples(each) == [1]]
    pauses = [after - before for before, after in pairwise(told)]
    assert told[0] == 2
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.rule("ack-11")
async def test_a_lost_hole_is_not_asked_for(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 2)
    in_file.ingest_harness.now += HOUR
    await in_file.check_gaps()
    assert (in_file.series.unfilled, in_file.gaps) == (1, [(0, 2)])
    assert [await in_file.commit_samples(each) for each in range(3, 200)] == [[0]] * 197


@pytest.mark.rule("ack-11")
async def test_another_hole_does_not_wait_for_one_that_never_fills(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 2)
    for each in range(3, 40):
        await in_file.commit_samples(each)
    assert in_file.series.backfill_interval > 10 * MINUTE
    assert await in_file.commit_samples(40) == [0]
    assert await in_file.commit_samples(42) == [1]


@pytest.mark.rule("ack-11", "ack-12")
async def test_once_a_hole_is_filled_nothing_is_asked_for_until_the_next(in_file: AckHarness) -> None:
    assert await in_file.commit_samples(0, 5) == [0, 1]
    assert await in_file.commit_samples(4, 3, 2, 1) == [0] * 4
    await in_file.check_gaps()
    assert [await in_file.commit_samples(each) for each in range(6, 20)] == [[0]] * 14
    assert await in_file.commit_samples(21) == [1]


@pytest.mark.rule("ack-21")
async def test_what_comes_by_backfill_is_acknowledged_with_type_0(in_file: AckHarness) -> None:
    assert await in_file.commit_samples(0, 100) == [0, 1]
    in_file.ingest_harness.now += 2 * HOUR  # and one could be asked for again
    assert await in_file.commit_samples(*range(99, 0, -3)) == [0] * 33


# --- After an outage of ours ---


@pytest.mark.rule("ack-11")
async def test_after_a_start_the_next_sample_of_each_known_series_asks_once(ground: AckHarness) -> None:
    await ground.commit_samples(0, 1)
    await ground.commit_samples(0, 1, device=E)
    await ground.ingest_harness.ingest.flush()
    await ground.restart()
    assert [await ground.commit_samples(2), await ground.commit_samples(2, device=E)] == [[1], [1]]
    assert [await ground.commit_samples(3), await ground.commit_samples(3, device=E)] == [[0], [0]]
    assert ground.acknowledger.counts.backfills == 2


@pytest.mark.rule("ack-13", "ack-11")
async def test_after_a_start_a_series_that_is_new_begins_with_type_0(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 1)
    await in_file.ingest_harness.ingest.flush()
    await in_file.restart()
    assert [await in_file.commit_samples(each, device=E) for each in range(5)] == [[0]] * 5


@pytest.mark.rule("ack-11", "ack-21")
async def test_an_old_sample_that_comes_first_after_a_start_does_not_ask_and_the_next_does(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0, 3)
    await in_file.ingest_harness.ingest.flush()
    await in_file.restart()
    assert await in_file.commit_samples(2, 1, 3) == [0, 0, 0]
    assert await in_file.commit_samples(4) == [1]


# --- After a gateway was away ---


@pytest.mark.rule("ack-11", "ack-12", "ack-24")
async def test_after_a_new_connection_of_its_gateway_each_series_asks_once(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 1)
    await in_file.commit_samples(0, 1, device=E, gateway=B)
    in_file.acknowledger.gateway_reconnected(mac_to_number(A), in_file.ingest_harness.now + 5 * SECOND)
    assert await in_file.commit_samples(2, device=E, gateway=B) == [0]
    assert [await in_file.commit_samples(each) for each in (2, 3, 4, 5)] == [[1], [0], [0], [0]]


async def test_what_begins_while_a_connection_is_being_noticed_has_missed_nothing(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0)
    in_file.acknowledger.gateway_reconnected(mac_to_number(A), in_file.ingest_harness.now + SECOND - 1)
    assert [await in_file.commit_samples(each) for each in (1, 2, 3)] == [[0]] * 3


@pytest.mark.rule("ack-12")
async def test_a_gateway_that_comes_back_all_the_time_is_asked_once_per_minute(in_file: AckHarness) -> None:
    told = []
    for each in range(130):
        in_file.ingest_harness.now = NOON + each * 5 * SECOND
        (answer,) = await in_file.commit(temperature(in_file.ingest_harness.now, seq=each % 256))
        if answer.type:
            told.append(each * 5)
        in_file.acknowledger.gateway_reconnected(mac_to_number(A), in_file.ingest_harness.now + 2 * SECOND)
    assert told[0] == 5
    assert [after - before for before, after in pairwise(told)] == [60] * (len(told) - 1)
    assert len(told) == 11


async def test_a_gateway_that_comes_back_is_asked_even_if_another_hole_never_fills(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0, 2)
    for each in range(3, 40):
        await in_file.commit_samples(each)
    in_file.acknowledger.gateway_reconnected(mac_to_number(A), in_file.ingest_harness.now + 5 * SECOND)
    assert (
        in_file.ingest_harness.now - in_file.series.requested_at
        < in_file.series.backfill_interval - 2 * MINUTE
    )
    assert await in_file.commit_samples(40) == [1]


@pytest.mark.parametrize(("others", "type_"), [(49_999, 1), (50_000, 0)])
async def test_of_so_many_gateways_it_is_remembered_that_they_came_back(
    in_file: AckHarness, others: int, type_: int
) -> None:
    await in_file.commit_samples(0, 1)
    for gateway in (mac_to_number(A), *range(others)):
        in_file.acknowledger.gateway_reconnected(gateway, in_file.ingest_harness.now + 5 * SECOND)
    assert await in_file.commit_samples(2) == [type_]


async def test_a_series_that_is_not_gap_checked_is_asked_for_after_an_outage_all_the_same(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0)
    in_file.series.unfilled = 3
    assert await in_file.commit_samples(2) == [0]
    in_file.acknowledger.gateway_reconnected(mac_to_number(A), in_file.ingest_harness.now + 5 * SECOND)
    assert await in_file.commit_samples(9) == [1]


# --- Whatever comes ---

steps = st.tuples(
    st.integers(0, 40),
    st.integers(0, 255),
    st.sampled_from([A, B]),
    st.integers(0, 90),
    st.booleans(),
)


@pytest.mark.rule("ack-12", "ack-13", "ack-14", "ack-21")
@given(st.lists(steps, max_size=80))
def test_whatever_comes_type_2_is_never_sent_and_type_1_rarely(
    sequence: list[tuple[int, int, str, int, bool]],
) -> None:
    post, now = RecordingTransport(), NOON + SECOND
    acks, newest, asked_at = SampleAcknowledger(post, prefix="", now=NOON), -1, NOON - HOUR
    for place, seq, gateway, seconds, is_back in sequence:
        now += seconds * SECOND
        if is_back:
            acks.gateway_reconnected(mac_to_number(gateway), now)
        draft = ParsedBatch(now, {mac_to_number(gateway)})
        row = (NOON + place, TEMPERATURE[1], TEMPERATURE[2], seq, mac_to_number(gateway), None, None, None)
        draft.unacked_samples.append((TEMPERATURE[0], "ack/8800", row))
        post.sent.clear()
        acks.on_commit(draft)
        (message,) = post.sent
        if message.payload.endswith(b'"type":1}'):
            assert place > newest >= 0
            assert now - asked_at >= MINUTE
            asked_at = now
        else:
            assert message.payload.endswith(b'"type":0}')
        newest = max(newest, place)


async def test_two_samples_of_one_millisecond_are_no_hole(in_file: AckHarness) -> None:
    """Whichever of them comes first."""
    assert [ack.type for ack in await in_file.commit(temperature(NOON, seq=7), temperature(NOON, seq=8))] == [
        0,
        0,
    ]
    later = [temperature(NOON + SECOND, seq=10), temperature(NOON + SECOND, seq=9)]
    in_file.ingest_harness.now += MINUTE
    await in_file.commit(*later, temperature(NOON + 2 * SECOND, seq=11))
    await in_file.check_gaps()
    assert in_file.series.gaps is None
    assert in_file.complete_up_to == 2 * SECOND / MINUTE
