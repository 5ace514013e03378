"""Devices in DFU mode, which may use another address."""

from __future__ import annotations

import pytest

from meshfleet.db.samples import SampleKind
from tests.service.ingest.ingest_harness import MINUTE, NOON, IngestHarness
from tests.service.ingest.messages import A, B, D, P, Q, dfu, heartbeat, link, mac_to_number, temperature

pytestmark = pytest.mark.anyio

T = NOON - MINUTE
DFU_ADDRESS = f"{mac_to_number(D) + 1:012x}"
"""Address after that of the device."""


@pytest.mark.rule("report-46")
async def test_entering_and_leaving_dfu_mode_is_recorded(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T))
    assert harness.state().boot_mode is None
    await harness.commit_flushed(dfu(T + 1, parent=Q, rssi=-44))
    state = harness.state()
    assert (state.boot_mode, state.reported_at, state.status) == ("dfu", T + 1, 0)
    assert (state.parent, state.rssi) == (mac_to_number(Q), -44)
    await harness.commit_flushed(temperature(T + 2))
    assert (harness.state().boot_mode, harness.state().reported_at) == (None, T + 2)


@pytest.mark.rule("report-50")
async def test_late_reports_neither_start_nor_end_dfu_mode(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T))
    await harness.commit_flushed(dfu(T + 5))
    await harness.commit_flushed(heartbeat(T + 4))
    assert harness.state().boot_mode == "dfu"
    await harness.commit_flushed(heartbeat(T + 7))
    await harness.commit_flushed(dfu(T + 6))
    assert (harness.state().boot_mode, harness.state().reported_at) == (None, T + 7)


@pytest.mark.rule("report-50")
async def test_the_newest_report_of_a_batch_determines_the_mode(harness: IngestHarness) -> None:
    await harness.commit_flushed(dfu(T + 2), heartbeat(T + 1))
    assert harness.state().boot_mode == "dfu"
    await harness.commit_flushed(heartbeat(T + 4), dfu(T + 3))
    assert harness.state().boot_mode is None
    await harness.commit_flushed(heartbeat(T + 5), dfu(T + 6))
    assert harness.state().boot_mode == "dfu"
    await harness.commit_flushed(dfu(T + 7), heartbeat(T + 8))
    assert harness.state().boot_mode is None


@pytest.mark.rule("report-46")
async def test_the_dfu_address_belongs_to_the_device(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T, 3))
    await harness.commit_flushed(dfu(T + 1, device=DFU_ADDRESS))
    assert (harness.state().boot_mode, harness.state().reported_at) == ("dfu", T + 1)
    assert (harness.state().status, harness.device(DFU_ADDRESS)) == (3, None)


@pytest.mark.rule("report-46")
@pytest.mark.parametrize("dfu_first", [True, False], ids=["dfu first", "heartbeat first"])
async def test_reports_of_both_addresses_are_merged(
    harness: IngestHarness,
    dfu_first: bool,  # noqa: FBT001 # a parameter
) -> None:
    await harness.commit_flushed(heartbeat(T), link(T, -80, P))
    own_reports = [heartbeat(T + 1, 7), link(T + 1, -70, P)]
    dfu_reports = [dfu(T + 2, device=DFU_ADDRESS, parent=Q, rssi=-60)]
    await harness.commit_flushed(*(dfu_reports + own_reports if dfu_first else own_reports + dfu_reports))
    state = harness.state()
    assert (state.boot_mode, state.reported_at, state.status) == ("dfu", T + 2, 7)
    assert (state.parent, state.rssi, state.radio_at) == (mac_to_number(Q), -60, T + 2)
    await harness.commit_flushed(dfu(T + 3, device=DFU_ADDRESS), heartbeat(T + 4, 8))
    assert (harness.state().boot_mode, harness.state().status) == (None, 8)


@pytest.mark.rule("report-46")
async def test_a_known_device_wins_over_the_dfu_address_of_another(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T), heartbeat(T, device=DFU_ADDRESS))
    await harness.commit_flushed(dfu(T + 1, device=DFU_ADDRESS))
    assert (harness.state(D).boot_mode, harness.state(DFU_ADDRESS).boot_mode) == (None, "dfu")
    assert harness.state(D).reported_at == T


@pytest.mark.rule("report-47")
async def test_a_dfu_report_of_an_unknown_address_adds_no_device(harness: IngestHarness) -> None:
    await harness.commit_flushed(dfu(T), dfu(T + 1, device=DFU_ADDRESS))
    assert (harness.device(D), harness.device(DFU_ADDRESS)) == (None, None)
    await harness.commit_flushed(heartbeat(T + 2, device=DFU_ADDRESS))
    await harness.commit_flushed(dfu(T + 3))
    assert harness.device(D) is None
    assert harness.state(DFU_ADDRESS).boot_mode is None


async def test_the_lowest_address_is_not_a_dfu_address(sqlite_harness: IngestHarness) -> None:
    await sqlite_harness.commit_flushed(dfu(T, device="0" * 12))
    assert sqlite_harness.device("0" * 12) is None


async def test_a_device_whose_first_batch_has_both_modes_is_added(harness: IngestHarness) -> None:
    await harness.commit_flushed(dfu(T + 1), heartbeat(T))
    assert (harness.state().boot_mode, harness.state().reported_at) == ("dfu", T + 1)


async def test_dfu_reports_create_no_samples_and_no_minutes(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T), dfu(T + 1))
    harness.now += 10 * MINUTE
    await harness.ingest.flush()
    samples = await harness.samples(kinds=SampleKind)
    assert [sample.kind for sample in samples] == [SampleKind.HEARTBEAT]


async def test_a_device_in_dfu_mode_may_change_its_gateway(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T - 3 * MINUTE))
    assert harness.gateway() == A
    await harness.commit_flushed(dfu(T, device=DFU_ADDRESS, gateway=B))
    assert harness.gateway() == B


async def test_dfu_mode_survives_a_crash_before_the_flush(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T))
    await harness.commit(dfu(T + 1, device=DFU_ADDRESS))
    await harness.restart()
    await harness.ingest.flush()
    assert harness.state().boot_mode == "dfu"
