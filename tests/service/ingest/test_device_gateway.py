"""Gateway of a device that several gateways receive."""

from __future__ import annotations

import pytest

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import A, B, D, dfu, heartbeat, mac_to_number, prop, temperature

pytestmark = pytest.mark.anyio

T = NOON - 10 * MINUTE


async def test_a_device_stays_with_a_gateway_that_still_receives_it(harness: IngestHarness) -> None:
    for second in range(0, 300, 50):
        await harness.commit_flushed(heartbeat(T + second * SECOND, gateway=A))
        await harness.commit_flushed(heartbeat(T + (second + 20) * SECOND, gateway=B))
        assert harness.gateway() == A, second
    assert harness.state().reported_at == T + 270 * SECOND
    assert harness.state().gateway_at == T + 250 * SECOND


async def test_a_device_changes_gateway_when_its_own_no_longer_receives_it(harness: IngestHarness) -> None:
    later = T + 5 * MINUTE // 2
    await harness.commit_flushed(heartbeat(T, gateway=A))
    await harness.commit_flushed(temperature(later - 1, gateway=B))
    assert harness.gateway() == A
    await harness.commit_flushed(temperature(later, gateway=B))
    assert harness.gateway() == B
    assert harness.state().gateway_at == later
    await harness.commit_flushed(temperature(later + 1, gateway=A))
    assert harness.gateway() == B


@pytest.mark.rule("report-50")
async def test_a_late_report_through_another_gateway_does_not_change_the_gateway(
    harness: IngestHarness,
) -> None:
    await harness.commit_flushed(heartbeat(T, gateway=A))
    await harness.commit_flushed(
        heartbeat(T - 5 * MINUTE, gateway=B), prop("8000", T - 5 * MINUTE, "2011", gateway=B)
    )
    assert (harness.gateway(), harness.state().gateway_at) == (A, T)
    assert harness.device().model == 0x2011


@pytest.mark.rule("report-50")
async def test_the_newest_report_of_a_batch_determines_the_gateway(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        temperature(T + 2, gateway=B), temperature(T + 1, gateway=A), heartbeat(T, gateway=A)
    )
    assert harness.gateway() == B


@pytest.mark.rule("report-50")
async def test_a_report_from_before_dfu_mode_does_not_determine_the_gateway(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        dfu(T + 5, gateway=B), heartbeat(T + 4, gateway=A), temperature(T + 4, gateway=A)
    )
    assert (harness.gateway(), harness.state().boot_mode) == (B, "dfu")


async def test_a_device_without_a_gateway_gets_one(harness: IngestHarness) -> None:
    observation = DeviceObservation(device=Mac(D), at=T, heard=False, name="by hand")
    harness.database.write_now(registry.record_observations, [observation])
    assert harness.gateway() is None
    await harness.commit_flushed(heartbeat(T - MINUTE, gateway=B))
    assert (harness.gateway(), harness.device().name) == (B, "by hand")


async def test_a_gateway_is_its_own_device(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T, 4, device=A, gateway=A))
    assert (harness.gateway(A), harness.state(A).status) == (A, 4)
    assert harness.state(A).gateway_at == T
    assert mac_to_number(A) == harness.device(A).id
