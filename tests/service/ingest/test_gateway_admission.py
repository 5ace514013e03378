"""Gateways on another broker: they register themselves, or are turned away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest import gateway_admission
from meshfleet.service.ingest.gateway_admission import GatewayAdmission
from tests.service.ingest.ingest_harness import NOON, IngestHarness
from tests.service.ingest.messages import A, B, D, heartbeat, mac_to_number, temperature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

EVERY = "f" * 12


@pytest.fixture
def welcoming(database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    made = IngestHarness(database, tmp_path, admission=GatewayAdmission(autoclaim=True))
    yield made
    made.close()


@pytest.fixture
def strict(database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    made = IngestHarness(database, tmp_path, admission=GatewayAdmission(autoclaim=False))
    yield made
    made.close()


def claimed(intake: IngestHarness) -> set[int]:
    return intake.database.read_now(gateway_admission.list_claimed_gateways)


def claim(intake: IngestHarness, mac: str) -> None:
    intake.database.write_now(gateways.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=1)


def release(intake: IngestHarness, mac: str) -> None:
    intake.database.write_now(gateways.release_gateway, Mac(mac), by=COMMAND_LINE, now=2)


@pytest.mark.rule("rest-79")
async def test_a_gateway_registers_itself_with_its_first_message(welcoming: IngestHarness) -> None:
    await welcoming.commit_flushed(
        heartbeat(NOON, gateway=A), temperature(NOON, gateway=B), heartbeat(NOON + 1)
    )
    assert claimed(welcoming) == {mac_to_number(A), mac_to_number(B)}
    assert welcoming.device(A) is not None
    assert welcoming.device(D) is not None
    assert (welcoming.rejects(), len(await welcoming.samples())) == ([], 1)


@pytest.mark.rule("rest-79")
async def test_without_autoclaim_unknown_gateways_are_turned_away(strict: IngestHarness) -> None:
    claim(strict, A)
    await strict.ingest.restore()
    await strict.commit_flushed(
        heartbeat(NOON, gateway=A), temperature(NOON, gateway=B), heartbeat(NOON, gateway=B)
    )
    assert claimed(strict) == {mac_to_number(A)}
    assert {row.gateway for row in strict.rejects()} == {mac_to_number(B)}
    assert strict.ingest.counters.rejects == {"unclaimed-gateway": 2}
    assert (await strict.samples(), strict.gateway(D)) == ([], A)


@pytest.mark.rule("rest-79")
async def test_a_released_gateway_is_noticed(database: Database, tmp_path: Path) -> None:
    guests = GatewayAdmission(autoclaim=False)
    strict = IngestHarness(database, tmp_path, admission=guests)
    claim(strict, A)
    await guests.refresh(database)
    await strict.commit(temperature(NOON))
    release(strict, A)
    await guests.refresh(database)
    await strict.commit(temperature(NOON + 1))
    assert [each.time for each in await strict.samples()] == [NOON]
    assert strict.ingest.counters.rejects == {"unclaimed-gateway": 1}
    strict.close()


async def test_a_gateway_that_was_claimed_a_moment_ago_is_no_stranger(strict: IngestHarness) -> None:
    await strict.commit(temperature(NOON, gateway=B))
    claim(strict, A)
    await strict.commit(temperature(NOON + 1, gateway=B), temperature(NOON + 2, gateway=A))
    assert [each.time for each in await strict.samples()] == [NOON + 2]
    assert strict.ingest.counters.rejects == {"unclaimed-gateway": 2}
    assert strict.ingest.counters.reports == {"measurement-decoded": 1}


@pytest.mark.rule("rest-79")
async def test_a_released_gateway_may_register_again_where_all_may(welcoming: IngestHarness) -> None:
    await welcoming.commit(temperature(NOON))
    release(welcoming, A)
    await welcoming.ingest.restore()
    await welcoming.commit(temperature(NOON + 1))
    assert claimed(welcoming) == {mac_to_number(A)}
    assert len(await welcoming.samples()) == 2


async def test_a_gateway_that_could_not_be_registered_is_with_the_next_try(welcoming: IngestHarness) -> None:
    message = temperature(NOON)
    welcoming.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await welcoming.commit(message)
    assert claimed(welcoming) == set()
    await welcoming.commit(message)
    assert claimed(welcoming) == {mac_to_number(A)}


async def test_what_is_no_topic_registers_nobody(welcoming: IngestHarness) -> None:
    await welcoming.commit(
        Publish(f"mt/gateway/{A}/request/{D}/read/8800", b"{}"),
        Publish(f"x/mt/gateway/{B}/device/{D}/dfu", b""),
    )
    assert claimed(welcoming) == set()
    assert len(welcoming.rejects()) == 2


async def test_the_address_of_all_gateways_is_nobodys(welcoming: IngestHarness) -> None:
    await welcoming.commit_flushed(temperature(NOON, gateway=EVERY), temperature(NOON + 1))
    assert claimed(welcoming) == {mac_to_number(A)}
    assert welcoming.device(EVERY) is None
    assert [row.gateway for row in welcoming.rejects()] == [mac_to_number(EVERY)]


async def test_without_guests_nobody_is_asked(intake: IngestHarness) -> None:
    """The embedded broker has asked already."""
    await intake.commit_flushed(temperature(NOON))
    assert claimed(intake) == set()
    assert len(await intake.samples()) == 1
