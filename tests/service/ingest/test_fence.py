"""Two programs on one server: who was overtaken writes nothing more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.broker import own
from meshfleet.errors import UnusableDatabase
from meshfleet.service.ingest.ingest import Pauses
from tests.service.ingest.intake import MINUTE, NOON, SECOND, Intake
from tests.service.ingest.messages import E, heartbeat, temperature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
def first(postgresql_database: Database, tmp_path: Path) -> Iterator[Intake]:
    owner = postgresql_database.write_now(own)
    made = Intake(postgresql_database, tmp_path, owner=owner, pauses=Pauses(look=0.01))
    yield made
    made.close()
    postgresql_database.close()


@pytest.fixture
async def second(first: Intake, tmp_path: Path) -> AsyncIterator[Intake]:
    """One that takes over after the first has taken something, and before it could write all of it down."""
    await first.take(heartbeat(NOON, 3), temperature(NOON))
    made = Intake(first.database, tmp_path, owner=first.database.write_now(own))
    await made.ingest.restore()
    yield made
    made.close()


async def test_who_was_overtaken_takes_nothing(first: Intake, second: Intake) -> None:
    malformed = heartbeat(NOON, device=E, seq=300)
    for message in (temperature(NOON + 1), heartbeat(NOON + 1), temperature(NOON, device=E), malformed):
        with pytest.raises(UnusableDatabase, match="another Meshfleet"):
            await first.take(message)
    assert len(await second.samples()) == 1
    assert (second.journal(), second.rejects(), await second.samples(E)) == (1, [], [])
    assert first.ingest.figures.batches == 1


async def test_who_was_overtaken_flushes_nothing(first: Intake, second: Intake) -> None:
    first.now += 10 * MINUTE
    with pytest.raises(UnusableDatabase, match="another Meshfleet"):
        await first.ingest.flush()
    assert (second.journal(), second.device()) == (1, None)
    assert len(await second.samples(kinds=range(6))) == 1


async def test_who_was_overtaken_ends(first: Intake, second: Intake) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(first.ingest.run(), 30)
    assert caught.group_contains(UnusableDatabase, match="another Meshfleet")
    assert second.journal() == 1


async def test_who_took_over_has_what_the_first_one_took(first: Intake, second: Intake) -> None:
    second.now += SECOND
    await second.settle(temperature(NOON + SECOND))
    with pytest.raises(UnusableDatabase):
        await first.ingest.flush()
    second.now += 10 * MINUTE
    await second.ingest.flush()
    assert (second.state().status, second.state().reported_at, second.journal()) == (3, NOON + SECOND, 0)
    assert len(await second.samples()) == 2
