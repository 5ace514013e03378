"""Databases that are away, rows that they refuse, and what the broker has to remember."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from sqlalchemy import select

from meshfleet.db.samples import SampleKind
from meshfleet.db.tables import label
from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker import ReportBatch
from meshfleet.mqtt.broker.store import PendingChanges
from meshfleet.service.ingest.metrics import IngestMetrics
from tests.service.ingest.ingest_harness import MINUTE, NOON, build_batch
from tests.service.ingest.messages import D, E, heartbeat, link, temperature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.mqtt.codec.packets import Publish
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

BAD = -273.16


class RecordingBatch(ReportBatch):
    """A batch because of which the broker has to remember a word."""

    has_changes = True

    def __init__(self, word: str, *messages: Publish) -> None:
        super().__init__(messages, PendingChanges(), b"")
        self._word = word
        self.tries = 0

    def write_changes(self, transaction: Connection) -> None:
        """See `Batch`."""
        self.tries += 1
        transaction.execute(label.insert().values(text=self._word, created_at=1))


def remembered(intake: IngestHarness) -> list[str]:
    return [row.text for row in intake.select_rows(select(label.c.text).order_by(label.c.text))]


def refuse(intake: IngestHarness) -> None:
    intake.store.refuses = lambda row: row[5] == BAD


# --- What the broker has to remember ---


async def test_what_the_broker_has_to_remember_is_committed_with_the_reports(intake: IngestHarness) -> None:
    await intake.ingest.commit(RecordingBatch("first", temperature(NOON)))
    await intake.ingest.commit(RecordingBatch("second"))
    assert remembered(intake) == ["first", "second"]
    assert len(await intake.samples()) == 1


async def test_what_fails_is_not_remembered_and_is_with_the_next_try(intake: IngestHarness) -> None:
    news = RecordingBatch("word", temperature(NOON), heartbeat(NOON))
    intake.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await intake.ingest.commit(news)
    assert remembered(intake) == []
    await intake.ingest.commit(news)
    assert (remembered(intake), news.tries) == (["word"], 2)


async def test_a_batch_without_news_records_nothing(in_file: IngestHarness) -> None:
    quiet = RecordingBatch("word", temperature(NOON))
    quiet.has_changes = False
    await in_file.ingest.commit(quiet)
    assert (quiet.tries, remembered(in_file)) == (0, [])
    assert len(await in_file.samples()) == 1


async def test_what_the_broker_wants_and_nobody_takes_loses_no_report(intake: IngestHarness) -> None:
    """It is not a report that is at fault, so none is rejected, and all come again."""
    await intake.ingest.commit(RecordingBatch("word"))
    news = RecordingBatch("word", temperature(NOON))
    with pytest.raises(DatabaseUnavailable):
        await intake.ingest.commit(news)
    assert (await intake.samples(), intake.rejects()) == ([], [])
    intake.database.write_now(lambda connection: connection.execute(label.delete()))
    await intake.ingest.commit(news)
    assert len(await intake.samples()) == 1


# --- What a database refuses ---


@pytest.mark.rule("report-29", "report-30", "report-31")
async def test_a_refused_report_is_rejected_alone(intake: IngestHarness) -> None:
    refuse(intake)
    good = [temperature(NOON + place) for place in range(20)]
    bad = temperature(NOON, BAD, seq=9)
    await intake.ingest.commit(RecordingBatch("word", *good[:7], bad, *good[7:], heartbeat(NOON, 2)))
    assert [each.time for each in await intake.samples()] == [NOON + place for place in range(20)]
    (row,) = intake.rejects()
    assert (row.topic, row.payload) == (bad.topic, bad.payload)
    assert "refuses" in row.reason
    assert remembered(intake) == ["word"]
    figures = intake.ingest.counters
    assert (figures.reports.total(), figures.rejects.total(), figures.samples) == (21, 1, 20)
    shown = {each.name: each.value for told in IngestMetrics(figures).collect() for each in told.samples}
    assert shown["meshfleet_lag_seconds_count"] == shown["meshfleet_batches_total"] > 0
    await intake.ingest.flush()
    assert intake.state().status == 2


async def test_several_may_be_refused_also_all(intake: IngestHarness) -> None:
    refuse(intake)
    await intake.commit(*(temperature(NOON + place, BAD if place % 3 == 0 else 1.0) for place in range(10)))
    assert (len(await intake.samples()), len(intake.rejects())) == (6, 4)
    await intake.commit(temperature(NOON, BAD, device=E))
    assert (len(await intake.samples(E)), len(intake.rejects())) == (0, 5)


async def test_of_two_messages_that_are_alike_both_are_rejected(intake: IngestHarness) -> None:
    refuse(intake)
    bad = temperature(NOON, BAD)
    await intake.commit(bad, temperature(NOON, BAD), temperature(NOON + 1))
    assert (len(await intake.samples()), len(intake.rejects())) == (1, 2)


async def test_readings_beside_a_refused_report_count_once_even_when_the_database_goes(
    intake: IngestHarness,
) -> None:
    refuse(intake)
    messages = [heartbeat(NOON, 1), temperature(NOON, BAD), link(NOON, -50), temperature(NOON + 1)]
    for failing in range(1, 4):
        await _take_and_fail_later(intake, messages, after=failing)
    await intake.commit(*messages)
    intake.now += 2 * MINUTE
    await intake.ingest.flush()
    ((_, _, _, shown),) = await intake.minutes(SampleKind.HEARTBEAT, D)
    assert shown["count"] == 1
    assert (len(await intake.samples()), len(intake.rejects())) == (1, 1)


async def _take_and_fail_later(intake: IngestHarness, messages: Sequence[Publish], *, after: int) -> None:
    """Let the database go in the middle of the search for a refused report."""
    calls = 0

    def row_by_row(row: tuple[object, ...]) -> bool:
        nonlocal calls
        calls += row[5] == BAD
        if calls == after:
            intake.store.failures = 1
        return row[5] == BAD

    intake.store.refuses = row_by_row
    with pytest.raises(DatabaseUnavailable):
        await intake.commit(*messages)
    assert (intake.count_journal(), intake.rejects(), await intake.samples()) == (0, [], [])
    intake.store.failures = 0
    refuse(intake)


# --- Turns ---


class Marked:
    """A message that tells when its topic is read."""

    payload = b""

    def __init__(self, turns: list[int]) -> None:
        self._turns = turns
        self.read_at: list[int] = []

    @property
    def topic(self) -> str:
        """Looks like any other."""
        self.read_at.append(len(self._turns))
        return "of/nobody"


async def test_a_large_batch_lets_others_have_their_turns(in_file: IngestHarness) -> None:
    turns: list[int] = []

    async def another() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    first, last = Marked(turns), Marked(turns)
    messages = [temperature(NOON + place) for place in range(40_000)]
    task = asyncio.create_task(another())
    await in_file.ingest.commit(build_batch(cast("list[Publish]", [first, *messages, last])))
    task.cancel()
    assert last.read_at[0] - first.read_at[0] >= 40
    assert in_file.ingest.counters.samples == 40_000
