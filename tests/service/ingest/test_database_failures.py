"""Unavailable databases, refused rows, and changes of the broker in the same transaction."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from sqlalchemy import Connection, select

from meshfleet.db.samples import SampleKind
from meshfleet.db.tables import label
from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker import ReportBatch
from meshfleet.mqtt.broker.store import PendingChanges
from meshfleet.service.metric_table import add_ingest_metrics
from tests.service.ingest.ingest_harness import MINUTE, NOON, IngestHarness, build_batch
from tests.service.ingest.messages import D, E, heartbeat, link, temperature
from tests.service.metric_values import read_added_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.mqtt.codec.packets import Publish

pytestmark = pytest.mark.anyio

REFUSED_VALUE = -273.16


class RecordingBatch(ReportBatch):
    """Batch with a change of the broker: it stores a label."""

    has_changes = True

    def __init__(self, label_text: str, *messages: Publish) -> None:
        super().__init__(messages, PendingChanges(), b"")
        self._label_text = label_text
        self.attempts = 0

    def write_changes(self, transaction: Connection) -> None:
        """Store the label; see `ReportBatch`."""
        self.attempts += 1
        transaction.execute(label.insert().values(text=self._label_text, created_at=1))


def list_labels(harness: IngestHarness) -> list[str]:
    return [row.text for row in harness.select_rows(select(label.c.text).order_by(label.c.text))]


def refuse_value(harness: IngestHarness) -> None:
    harness.store.refuses = lambda row: row[5] == REFUSED_VALUE


# --- Changes of the broker ---


async def test_changes_of_the_broker_are_committed_with_the_reports(harness: IngestHarness) -> None:
    await harness.ingest.commit(RecordingBatch("first", temperature(NOON)))
    await harness.ingest.commit(RecordingBatch("second"))
    assert list_labels(harness) == ["first", "second"]
    assert len(await harness.samples()) == 1


async def test_changes_of_a_failed_batch_are_committed_with_the_next_attempt(harness: IngestHarness) -> None:
    batch = RecordingBatch("word", temperature(NOON), heartbeat(NOON))
    harness.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await harness.ingest.commit(batch)
    assert list_labels(harness) == []
    await harness.ingest.commit(batch)
    assert (list_labels(harness), batch.attempts) == (["word"], 2)


async def test_a_batch_without_changes_of_the_broker_writes_none(sqlite_harness: IngestHarness) -> None:
    batch = RecordingBatch("word", temperature(NOON))
    batch.has_changes = False
    await sqlite_harness.ingest.commit(batch)
    assert (batch.attempts, list_labels(sqlite_harness)) == (0, [])
    assert len(await sqlite_harness.samples()) == 1


async def test_a_refused_change_of_the_broker_loses_no_report(harness: IngestHarness) -> None:
    """Check that no report is rejected, as none is invalid: all are sent again."""
    await harness.ingest.commit(RecordingBatch("word"))
    batch = RecordingBatch("word", temperature(NOON))
    with pytest.raises(DatabaseUnavailable):
        await harness.ingest.commit(batch)
    assert (await harness.samples(), harness.rejects()) == ([], [])
    harness.database.write_now(lambda connection: connection.execute(label.delete()))
    await harness.ingest.commit(batch)
    assert len(await harness.samples()) == 1


# --- Refused rows ---


@pytest.mark.rule("report-29", "report-30", "report-31")
async def test_a_refused_report_is_rejected_alone(harness: IngestHarness) -> None:
    refuse_value(harness)
    valid = [temperature(NOON + index) for index in range(20)]
    refused = temperature(NOON, REFUSED_VALUE, seq=9)
    await harness.ingest.commit(RecordingBatch("word", *valid[:7], refused, *valid[7:], heartbeat(NOON, 2)))
    assert [sample.time for sample in await harness.samples()] == [NOON + index for index in range(20)]
    (row,) = harness.rejects()
    assert (row.topic, row.payload) == (refused.topic, refused.payload)
    assert "refused by the database" in row.reason
    assert list_labels(harness) == ["word"]
    counters = harness.ingest.counters
    assert (counters.reports.total(), counters.rejects.total(), counters.samples) == (21, 1, 20)
    values = read_added_metrics(partial(add_ingest_metrics, counters=counters))
    assert values["meshfleet_lag_seconds_count",] == values["meshfleet_batches_total",] > 0
    await harness.ingest.flush()
    assert harness.state().status == 2


async def test_several_or_all_reports_may_be_refused(harness: IngestHarness) -> None:
    refuse_value(harness)
    await harness.commit(
        *(temperature(NOON + index, REFUSED_VALUE if index % 3 == 0 else 1.0) for index in range(10))
    )
    assert (len(await harness.samples()), len(harness.rejects())) == (6, 4)
    await harness.commit(temperature(NOON, REFUSED_VALUE, device=E))
    assert (len(await harness.samples(E)), len(harness.rejects())) == (0, 5)


async def test_two_equal_refused_messages_are_both_rejected(harness: IngestHarness) -> None:
    refuse_value(harness)
    refused = temperature(NOON, REFUSED_VALUE)
    await harness.commit(refused, temperature(NOON, REFUSED_VALUE), temperature(NOON + 1))
    assert (len(await harness.samples()), len(harness.rejects())) == (1, 2)


async def test_readings_in_a_batch_with_a_refused_report_count_once_despite_outages(
    harness: IngestHarness,
) -> None:
    refuse_value(harness)
    messages = [heartbeat(NOON, 1), temperature(NOON, REFUSED_VALUE), link(NOON, -50), temperature(NOON + 1)]
    for failing_call in range(1, 4):
        await _commit_and_fail_later(harness, messages, after=failing_call)
    await harness.commit(*messages)
    harness.now += 2 * MINUTE
    await harness.ingest.flush()
    ((_, _, _, summary),) = await harness.minutes(SampleKind.HEARTBEAT, D)
    assert summary["count"] == 1
    assert (len(await harness.samples()), len(harness.rejects())) == (1, 1)


async def _commit_and_fail_later(harness: IngestHarness, messages: Sequence[Publish], *, after: int) -> None:
    """Let the database fail during the search for a refused report."""
    calls = 0

    def refuse_and_fail(row: tuple[object, ...]) -> bool:
        nonlocal calls
        calls += row[5] == REFUSED_VALUE
        if calls == after:
            harness.store.failures = 1
        return row[5] == REFUSED_VALUE

    harness.store.refuses = refuse_and_fail
    with pytest.raises(DatabaseUnavailable):
        await harness.commit(*messages)
    assert (harness.count_journal(), harness.rejects(), await harness.samples()) == (0, [], [])
    harness.store.failures = 0
    refuse_value(harness)


# --- Cooperative scheduling ---


class RecordingMessage:
    """Message that records when its topic is read."""

    payload = b""

    def __init__(self, turns: list[int]) -> None:
        self._turns = turns
        self.read_at: list[int] = []

    @property
    def topic(self) -> str:
        """Topic of no gateway."""
        self.read_at.append(len(self._turns))
        return "some/topic"


async def test_a_large_batch_does_not_block_other_tasks(sqlite_harness: IngestHarness) -> None:
    turns: list[int] = []

    async def count_turns() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    first, last = RecordingMessage(turns), RecordingMessage(turns)
    messages = [temperature(NOON + index) for index in range(10_000)]
    task = asyncio.create_task(count_turns())
    await sqlite_harness.ingest.commit(build_batch(cast("list[Publish]", [first, *messages, last])))
    task.cancel()
    assert last.read_at[0] - first.read_at[0] >= 10
    assert sqlite_harness.ingest.counters.samples == 10_000
