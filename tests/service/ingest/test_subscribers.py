"""Whatever follows ingest: what is committed stays committed, and everybody else goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.ingest.ingest_harness import NOON, SECOND
from tests.service.ingest.messages import D, heartbeat, mac_to_number, temperature

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio


class RecordingSubscriber:
    """A follower, and what it has to write; it may break at any place."""

    def __init__(self, breaks_at: str = "") -> None:
        self._breaks_at = breaks_at
        self.seen: list[str] = []

    def on_commit(self, batch: ParsedBatch) -> None:
        """See `Follower`."""
        self._do("follow")
        self.seen += batch.report_kinds

    def prepare_flush(self, states: PendingStates, now: int) -> RecordingSubscriber:  # noqa: ARG002 # as followers are asked
        """See `Follower`."""
        self._do("collect")
        return self

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # the same
        """See `Entry`."""
        self.seen += [f"{device:012x}" for device in added]

    def on_flushed(self) -> None:
        """See `Entry`."""
        self._do("written")
        self.seen.append("written")

    def _do(self, what: str) -> None:
        if what == self._breaks_at:
            raise KeyError(what)


async def test_a_follower_sees_what_is_committed_and_writes_with_the_notes(intake: IngestHarness) -> None:
    watcher = RecordingSubscriber()
    intake.ingest.subscribe(watcher)
    await intake.commit_flushed(heartbeat(NOON), temperature(NOON))
    assert watcher.seen == ["heartbeat", "measurement-decoded", D, "written"]
    await intake.commit_flushed(heartbeat(NOON + SECOND))
    assert watcher.seen[4:] == ["heartbeat", "written"]


@pytest.mark.parametrize("place", ["follow", "collect", "written"])
async def test_a_follower_that_breaks_breaks_nothing_else(
    intake: IngestHarness, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    broken, sound = RecordingSubscriber(place), RecordingSubscriber()
    intake.ingest.subscribe(broken)
    intake.ingest.subscribe(sound)
    await intake.commit_flushed(heartbeat(NOON, 3), temperature(NOON))
    assert sound.seen == ["heartbeat", "measurement-decoded", D, "written"]
    assert (len(await intake.samples()), intake.state().status, intake.ingest.trouble) == (1, 3, None)
    assert ("a subscriber failed" in caplog.text, intake.ingest.counters.subscriber_failures) == (True, 1)
    assert mac_to_number(D) == intake.state().device
