"""Gateways on an external broker: they register themselves, or their reports are rejected."""

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

ALL_GATEWAYS = "f" * 12


@pytest.fixture
def autoclaiming(database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    harness = IngestHarness(database, tmp_path, admission=GatewayAdmission(autoclaim=True))
    yield harness
    harness.close()


@pytest.fixture
def strict(database: Database, tmp_path: Path) -> Iterator[IngestHarness]:
    harness = IngestHarness(database, tmp_path, admission=GatewayAdmission(autoclaim=False))
    yield harness
    harness.close()


def list_claimed(harness: IngestHarness) -> set[int]:
    return harness.database.read_now(gateway_admission.list_claimed_gateways)


def claim(harness: IngestHarness, mac: str) -> None:
    harness.database.write_now(gateways.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=1)


def release(harness: IngestHarness, mac: str) -> None:
    harness.database.write_now(gateways.release_gateway, Mac(mac), by=COMMAND_LINE, now=2)


@pytest.mark.rule("rest-79")
async def test_a_gateway_registers_with_its_first_message(autoclaiming: IngestHarness) -> None:
    await autoclaiming.commit_flushed(
        heartbeat(NOON, gateway=A), temperature(NOON, gateway=B), heartbeat(NOON + 1)
    )
    assert list_claimed(autoclaiming) == {mac_to_number(A), mac_to_number(B)}
    assert autoclaiming.device(A) is not None
    assert autoclaiming.device(D) is not None
    assert (autoclaiming.rejects(), len(await autoclaiming.samples())) == ([], 1)


@pytest.mark.rule("rest-79")
async def test_without_autoclaim_reports_of_unclaimed_gateways_are_rejected(strict: IngestHarness) -> None:
    claim(strict, A)
    await strict.ingest.restore()
    await strict.commit_flushed(
        heartbeat(NOON, gateway=A), temperature(NOON, gateway=B), heartbeat(NOON, gateway=B)
    )
    assert list_claimed(strict) == {mac_to_number(A)}
    assert {row.gateway for row in strict.rejects()} == {mac_to_number(B)}
    assert strict.ingest.counters.rejects == {"unclaimed-gateway": 2}
    assert (await strict.samples(), strict.gateway(D)) == ([], A)


@pytest.mark.rule("rest-79")
async def test_reports_of_a_released_gateway_are_rejected(database: Database, tmp_path: Path) -> None:
    admission = GatewayAdmission(autoclaim=False)
    strict = IngestHarness(database, tmp_path, admission=admission)
    claim(strict, A)
    await admission.reload_claimed_gateways(database)
    await strict.commit(temperature(NOON))
    release(strict, A)
    await admission.reload_claimed_gateways(database)
    await strict.commit(temperature(NOON + 1))
    assert [sample.time for sample in await strict.samples()] == [NOON]
    assert strict.ingest.counters.rejects == {"unclaimed-gateway": 1}
    strict.close()


async def test_a_gateway_that_was_just_claimed_is_accepted(strict: IngestHarness) -> None:
    await strict.commit(temperature(NOON, gateway=B))
    claim(strict, A)
    await strict.commit(temperature(NOON + 1, gateway=B), temperature(NOON + 2, gateway=A))
    assert [sample.time for sample in await strict.samples()] == [NOON + 2]
    assert strict.ingest.counters.rejects == {"unclaimed-gateway": 2}
    assert strict.ingest.counters.reports == {"measurement-decoded": 1}


@pytest.mark.rule("rest-79")
async def test_a_released_gateway_may_register_again_with_autoclaim(autoclaiming: IngestHarness) -> None:
    await autoclaiming.commit(temperature(NOON))
    release(autoclaiming, A)
    await autoclaiming.ingest.restore()
    await autoclaiming.commit(temperature(NOON + 1))
    assert list_claimed(autoclaiming) == {mac_to_number(A)}
    assert len(await autoclaiming.samples()) == 2


async def test_a_gateway_whose_registration_failed_is_registered_by_the_next_attempt(
    autoclaiming: IngestHarness,
) -> None:
    message = temperature(NOON)
    autoclaiming.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await autoclaiming.commit(message)
    assert list_claimed(autoclaiming) == set()
    await autoclaiming.commit(message)
    assert list_claimed(autoclaiming) == {mac_to_number(A)}


async def test_other_topics_register_no_gateway(autoclaiming: IngestHarness) -> None:
    await autoclaiming.commit(
        Publish(f"mt/gateway/{A}/request/{D}/read/8800", b"{}"),
        Publish(f"x/mt/gateway/{B}/device/{D}/dfu", b""),
    )
    assert list_claimed(autoclaiming) == set()
    assert len(autoclaiming.rejects()) == 2


async def test_the_address_of_all_gateways_is_not_registered(autoclaiming: IngestHarness) -> None:
    await autoclaiming.commit_flushed(temperature(NOON, gateway=ALL_GATEWAYS), temperature(NOON + 1))
    assert list_claimed(autoclaiming) == {mac_to_number(A)}
    assert autoclaiming.device(ALL_GATEWAYS) is None
    assert [row.gateway for row in autoclaiming.rejects()] == [mac_to_number(ALL_GATEWAYS)]


async def test_without_admission_all_gateways_are_accepted(harness: IngestHarness) -> None:
    """Check the case of the embedded broker, which authenticates gateways itself."""
    await harness.commit_flushed(temperature(NOON))
    assert list_claimed(harness) == set()
    assert len(await harness.samples()) == 1
