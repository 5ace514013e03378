"""Gateways on another broker: they register themselves, or are turned away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.gateways import registering
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest.guests import Guests
from meshfleet.wire.ids import Mac
from meshfleet.wire.mqtt.packets import Publish
from tests.service.ingest.intake import NOON, Intake
from tests.service.ingest.messages import A, B, D, heartbeat, number, temperature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

EVERY = "f" * 12


@pytest.fixture
def welcoming(database: Database, tmp_path: Path) -> Iterator[Intake]:
    made = Intake(database, tmp_path, guests=Guests(welcome=True))
    yield made
    made.close()


@pytest.fixture
def strict(database: Database, tmp_path: Path) -> Iterator[Intake]:
    made = Intake(database, tmp_path, guests=Guests(welcome=False))
    yield made
    made.close()


def claimed(intake: Intake) -> set[int]:
    return intake.database.read_now(registering.known)


def claim(intake: Intake, mac: str) -> None:
    intake.database.write_now(gateways.claim, Mac(mac), name=None, by=COMMAND_LINE, now=1)


def release(intake: Intake, mac: str) -> None:
    intake.database.write_now(gateways.release, Mac(mac), by=COMMAND_LINE, now=2)


@pytest.mark.rule("rest-79")
async def test_a_gateway_registers_itself_with_its_first_message(welcoming: Intake) -> None:
    await welcoming.settle(heartbeat(NOON, gateway=A), temperature(NOON, gateway=B), heartbeat(NOON + 1))
    assert claimed(welcoming) == {number(A), number(B)}
    assert welcoming.device(A) is not None
    assert welcoming.device(D) is not None
    assert (welcoming.rejects(), len(await welcoming.samples())) == ([], 1)


@pytest.mark.rule("rest-79")
async def test_without_autoclaim_unknown_gateways_are_turned_away(strict: Intake) -> None:
    claim(strict, A)
    await strict.ingest.restore()
    await strict.settle(heartbeat(NOON, gateway=A), temperature(NOON, gateway=B), heartbeat(NOON, gateway=B))
    assert claimed(strict) == {number(A)}
    assert {row.gateway for row in strict.rejects()} == {number(B)}
    assert strict.ingest.figures.rejects == {"unclaimed-gateway": 2}
    assert (await strict.samples(), strict.gateway(D)) == ([], A)


@pytest.mark.rule("rest-79")
async def test_a_released_gateway_is_noticed(database: Database, tmp_path: Path) -> None:
    guests = Guests(welcome=False)
    strict = Intake(database, tmp_path, guests=guests)
    claim(strict, A)
    await guests.look(database)
    await strict.take(temperature(NOON))
    release(strict, A)
    await guests.look(database)
    await strict.take(temperature(NOON + 1))
    assert [each.time for each in await strict.samples()] == [NOON]
    assert strict.ingest.figures.rejects == {"unclaimed-gateway": 1}
    strict.close()


async def test_a_gateway_that_was_claimed_a_moment_ago_is_no_stranger(strict: Intake) -> None:
    await strict.take(temperature(NOON, gateway=B))
    claim(strict, A)
    await strict.take(temperature(NOON + 1, gateway=B), temperature(NOON + 2, gateway=A))
    assert [each.time for each in await strict.samples()] == [NOON + 2]
    assert strict.ingest.figures.rejects == {"unclaimed-gateway": 2}
    assert strict.ingest.figures.reports == {"measurement-decoded": 1}


@pytest.mark.rule("rest-79")
async def test_a_released_gateway_may_register_again_where_all_may(welcoming: Intake) -> None:
    await welcoming.take(temperature(NOON))
    release(welcoming, A)
    await welcoming.ingest.restore()
    await welcoming.take(temperature(NOON + 1))
    assert claimed(welcoming) == {number(A)}
    assert len(await welcoming.samples()) == 2


async def test_a_gateway_that_could_not_be_registered_is_with_the_next_try(welcoming: Intake) -> None:
    message = temperature(NOON)
    welcoming.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await welcoming.take(message)
    assert claimed(welcoming) == set()
    await welcoming.take(message)
    assert claimed(welcoming) == {number(A)}


async def test_what_is_no_topic_registers_nobody(welcoming: Intake) -> None:
    await welcoming.take(
        Publish(f"mt/gateway/{A}/request/{D}/read/8800", b"{}"),
        Publish(f"x/mt/gateway/{B}/device/{D}/dfu", b""),
    )
    assert claimed(welcoming) == set()
    assert len(welcoming.rejects()) == 2


async def test_the_address_of_all_gateways_is_nobodys(welcoming: Intake) -> None:
    await welcoming.settle(temperature(NOON, gateway=EVERY), temperature(NOON + 1))
    assert claimed(welcoming) == {number(A)}
    assert welcoming.device(EVERY) is None
    assert [row.gateway for row in welcoming.rejects()] == [number(EVERY)]


async def test_without_guests_nobody_is_asked(intake: Intake) -> None:
    """The embedded broker has asked already."""
    await intake.settle(temperature(NOON))
    assert claimed(intake) == set()
    assert len(await intake.samples()) == 1
