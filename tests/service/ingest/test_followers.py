"""Whatever follows ingest: what is committed stays committed, and everybody else goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.ingest.intake import NOON, SECOND
from tests.service.ingest.messages import D, heartbeat, number, temperature

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes
    from tests.service.ingest.intake import Intake

pytestmark = pytest.mark.anyio


class Watcher:
    """A follower, and what it has to write; it may break at any place."""

    def __init__(self, breaks_at: str = "") -> None:
        self._breaks_at = breaks_at
        self.seen: list[str] = []

    def follow(self, draft: Draft) -> None:
        """See `Follower`."""
        self._do("follow")
        self.seen += draft.seen

    def collect(self, notes: Notes, now: int) -> Watcher:  # noqa: ARG002 # as followers are asked
        """See `Follower`."""
        self._do("collect")
        return self

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # the same
        """See `Entry`."""
        self.seen += [f"{device:012x}" for device in added]

    def written(self) -> None:
        """See `Entry`."""
        self._do("written")
        self.seen.append("written")

    def _do(self, what: str) -> None:
        if what == self._breaks_at:
            raise KeyError(what)


async def test_a_follower_sees_what_is_committed_and_writes_with_the_notes(intake: Intake) -> None:
    watcher = Watcher()
    intake.ingest.lead(watcher)
    await intake.settle(heartbeat(NOON), temperature(NOON))
    assert watcher.seen == ["heartbeat", "measurement-decoded", D, "written"]
    await intake.settle(heartbeat(NOON + SECOND))
    assert watcher.seen[4:] == ["heartbeat", "written"]


@pytest.mark.parametrize("place", ["follow", "collect", "written"])
async def test_a_follower_that_breaks_breaks_nothing_else(
    intake: Intake, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    broken, sound = Watcher(place), Watcher()
    intake.ingest.lead(broken)
    intake.ingest.lead(sound)
    await intake.settle(heartbeat(NOON, 3), temperature(NOON))
    assert sound.seen == ["heartbeat", "measurement-decoded", D, "written"]
    assert (len(await intake.samples()), intake.state().status, intake.ingest.trouble) == (1, 3, None)
    assert ("could not be followed" in caplog.text, intake.ingest.figures.failures) == (True, 1)
    assert number(D) == intake.state().device
