"""Subscribers of ingest: their failures affect neither the commit nor each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.ingest.ingest_harness import NOON, SECOND, IngestHarness
from tests.service.ingest.messages import D, heartbeat, mac_to_number, temperature

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates

pytestmark = pytest.mark.anyio


class RecordingSubscriber:
    """Subscriber that records its calls and raises at a given one."""

    def __init__(self, fails_at: str = "") -> None:
        self._fails_at = fails_at
        self.seen: list[str] = []

    def on_commit(self, batch: ParsedBatch) -> None:
        """Record the kinds of the reports; see `CommitSubscriber`."""
        self._fail_if_requested("on_commit")
        self.seen += batch.report_kinds

    def prepare_flush(self, states: PendingStates, now: int) -> RecordingSubscriber:  # noqa: ARG002 # required by the protocol
        """Return this subscriber as its own flush part."""
        self._fail_if_requested("prepare_flush")
        return self

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # required by the protocol
        """Record the added devices; see `FlushPart`."""
        self.seen += [f"{device:012x}" for device in added]

    def on_flushed(self) -> None:
        """Record the commit; see `FlushPart`."""
        self._fail_if_requested("on_flushed")
        self.seen.append("written")

    def _fail_if_requested(self, method: str) -> None:
        if method == self._fails_at:
            raise KeyError(method)


async def test_a_subscriber_receives_committed_reports_and_writes_with_the_flush(
    harness: IngestHarness,
) -> None:
    subscriber = RecordingSubscriber()
    harness.ingest.subscribe(subscriber)
    await harness.commit_flushed(heartbeat(NOON), temperature(NOON))
    assert subscriber.seen == ["heartbeat", "measurement-decoded", D, "written"]
    await harness.commit_flushed(heartbeat(NOON + SECOND))
    assert subscriber.seen[4:] == ["heartbeat", "written"]


@pytest.mark.parametrize("method", ["on_commit", "prepare_flush", "on_flushed"])
async def test_a_failing_subscriber_affects_nothing_else(
    harness: IngestHarness, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    failing, working = RecordingSubscriber(method), RecordingSubscriber()
    harness.ingest.subscribe(failing)
    harness.ingest.subscribe(working)
    await harness.commit_flushed(heartbeat(NOON, 3), temperature(NOON))
    assert working.seen == ["heartbeat", "measurement-decoded", D, "written"]
    assert (len(await harness.samples()), harness.state().status, harness.ingest.problem) == (1, 3, None)
    assert ("a subscriber failed" in caplog.text, harness.ingest.counters.subscriber_failures) == (True, 1)
    assert mac_to_number(D) == harness.state().device
