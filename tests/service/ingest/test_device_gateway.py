"""To which gateway a device belongs that several hear."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, dfu, heartbeat, mac_to_number, prop, temperature

if TYPE_CHECKING:
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

T = NOON - 10 * MINUTE


async def test_a_device_stays_with_the_gateway_that_still_hears_it(intake: IngestHarness) -> None:
    for second in range(0, 300, 50):
        await intake.commit_flushed(heartbeat(T + second * SECOND, gateway=A))
        await intake.commit_flushed(heartbeat(T + (second + 20) * SECOND, gateway=B))
        assert intake.gateway() == A, second
    assert intake.state().reported_at == T + 270 * SECOND
    assert intake.state().gateway_at == T + 250 * SECOND


async def test_a_device_follows_when_its_gateway_hears_it_no_more(intake: IngestHarness) -> None:
    later = T + 5 * MINUTE // 2
    await intake.commit_flushed(heartbeat(T, gateway=A))
    await intake.commit_flushed(temperature(later - 1, gateway=B))
    assert intake.gateway() == A
    await intake.commit_flushed(temperature(later, gateway=B))
    assert intake.gateway() == B
    assert intake.state().gateway_at == later
    await intake.commit_flushed(temperature(later + 1, gateway=A))
    assert intake.gateway() == B


@pytest.mark.rule("report-50")
async def test_a_late_report_through_another_gateway_moves_no_device(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T, gateway=A))
    await intake.commit_flushed(
        heartbeat(T - 5 * MINUTE, gateway=B), prop("8000", T - 5 * MINUTE, "2011", gateway=B)
    )
    assert (intake.gateway(), intake.state().gateway_at) == (A, T)
    assert intake.device().model == 0x2011


@pytest.mark.rule("report-50")
async def test_within_a_batch_the_newest_report_tells_the_gateway(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        temperature(T + 2, gateway=B), temperature(T + 1, gateway=A), heartbeat(T, gateway=A)
    )
    assert intake.gateway() == B


@pytest.mark.rule("report-50")
async def test_a_report_from_before_dfu_mode_does_not_tell_the_gateway(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        dfu(T + 5, gateway=B), heartbeat(T + 4, gateway=A), temperature(T + 4, gateway=A)
    )
    assert (intake.gateway(), intake.state().boot_mode) == (B, "dfu")


async def test_a_device_that_was_known_without_a_gateway_gets_one(intake: IngestHarness) -> None:
    seen = DeviceObservation(device=Mac(D), at=T, heard=False, name="by hand")
    intake.database.write_now(registry.record_observations, [seen])
    assert intake.gateway() is None
    await intake.commit_flushed(heartbeat(T - MINUTE, gateway=B))
    assert (intake.gateway(), intake.device().name) == (B, "by hand")


async def test_a_gateway_is_a_device_of_its_own(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T, 4, device=A, gateway=A))
    assert (intake.gateway(A), intake.state(A).status) == (A, 4)
    assert intake.state(A).gateway_at == T
    assert mac_to_number(A) == intake.device(A).id
