"""Devices in DFU mode, which may have another address there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.db.samples import SampleKind
from tests.service.ingest.ingest_harness import MINUTE, NOON
from tests.service.ingest.messages import A, B, D, P, Q, dfu, heartbeat, link, mac_to_number, temperature

if TYPE_CHECKING:
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

T = NOON - MINUTE
ABOVE = f"{mac_to_number(D) + 1:012x}"
"""The address behind that of the device."""


@pytest.mark.rule("report-46")
async def test_a_device_in_dfu_mode_is_told_and_its_return_too(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T))
    assert intake.state().boot_mode is None
    await intake.commit_flushed(dfu(T + 1, parent=Q, rssi=-44))
    state = intake.state()
    assert (state.boot_mode, state.reported_at, state.status) == ("dfu", T + 1, 0)
    assert (state.parent, state.rssi) == (mac_to_number(Q), -44)
    await intake.commit_flushed(temperature(T + 2))
    assert (intake.state().boot_mode, intake.state().reported_at) == (None, T + 2)


@pytest.mark.rule("report-50")
async def test_late_reports_do_not_end_dfu_mode_nor_begin_it(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T))
    await intake.commit_flushed(dfu(T + 5))
    await intake.commit_flushed(heartbeat(T + 4))
    assert intake.state().boot_mode == "dfu"
    await intake.commit_flushed(heartbeat(T + 7))
    await intake.commit_flushed(dfu(T + 6))
    assert (intake.state().boot_mode, intake.state().reported_at) == (None, T + 7)


@pytest.mark.rule("report-50")
async def test_within_a_batch_the_newest_decides_the_mode(intake: IngestHarness) -> None:
    await intake.commit_flushed(dfu(T + 2), heartbeat(T + 1))
    assert intake.state().boot_mode == "dfu"
    await intake.commit_flushed(heartbeat(T + 4), dfu(T + 3))
    assert intake.state().boot_mode is None
    await intake.commit_flushed(heartbeat(T + 5), dfu(T + 6))
    assert intake.state().boot_mode == "dfu"
    await intake.commit_flushed(dfu(T + 7), heartbeat(T + 8))
    assert intake.state().boot_mode is None


@pytest.mark.rule("report-46")
async def test_the_address_behind_belongs_to_the_device(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T, 3))
    await intake.commit_flushed(dfu(T + 1, device=ABOVE))
    assert (intake.state().boot_mode, intake.state().reported_at) == ("dfu", T + 1)
    assert (intake.state().status, intake.device(ABOVE)) == (3, None)


@pytest.mark.rule("report-46")
@pytest.mark.parametrize("first", [True, False], ids=["dfu first", "heartbeat first"])
async def test_nothing_is_lost_of_a_device_that_uses_both_addresses_at_once(
    intake: IngestHarness,
    first: bool,  # noqa: FBT001 # a parameter
) -> None:
    await intake.commit_flushed(heartbeat(T), link(T, -80, P))
    own = [heartbeat(T + 1, 7), link(T + 1, -70, P)]
    behind = [dfu(T + 2, device=ABOVE, parent=Q, rssi=-60)]
    await intake.commit_flushed(*(behind + own if first else own + behind))
    state = intake.state()
    assert (state.boot_mode, state.reported_at, state.status) == ("dfu", T + 2, 7)
    assert (state.parent, state.rssi, state.radio_at) == (mac_to_number(Q), -60, T + 2)
    await intake.commit_flushed(dfu(T + 3, device=ABOVE), heartbeat(T + 4, 8))
    assert (intake.state().boot_mode, intake.state().status) == (None, 8)


@pytest.mark.rule("report-46")
async def test_an_address_of_its_own_comes_before_the_one_below(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T), heartbeat(T, device=ABOVE))
    await intake.commit_flushed(dfu(T + 1, device=ABOVE))
    assert (intake.state(D).boot_mode, intake.state(ABOVE).boot_mode) == (None, "dfu")
    assert intake.state(D).reported_at == T


@pytest.mark.rule("report-47")
async def test_an_unknown_address_never_becomes_a_device_by_dfu(intake: IngestHarness) -> None:
    await intake.commit_flushed(dfu(T), dfu(T + 1, device=ABOVE))
    assert (intake.device(D), intake.device(ABOVE)) == (None, None)
    await intake.commit_flushed(heartbeat(T + 2, device=ABOVE))
    await intake.commit_flushed(dfu(T + 3))
    assert intake.device(D) is None
    assert intake.state(ABOVE).boot_mode is None


async def test_the_lowest_address_has_none_below(in_file: IngestHarness) -> None:
    await in_file.commit_flushed(dfu(T, device="0" * 12))
    assert in_file.device("0" * 12) is None


async def test_a_device_that_is_first_heard_with_both_is_added(intake: IngestHarness) -> None:
    await intake.commit_flushed(dfu(T + 1), heartbeat(T))
    assert (intake.state().boot_mode, intake.state().reported_at) == ("dfu", T + 1)


async def test_dfu_reports_are_no_samples_and_no_minutes(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T), dfu(T + 1))
    intake.now += 10 * MINUTE
    await intake.ingest.flush()
    found = await intake.samples(kinds=SampleKind)
    assert [each.kind for each in found] == [SampleKind.HEARTBEAT]


async def test_a_device_in_dfu_mode_follows_to_another_gateway(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T - 3 * MINUTE))
    assert intake.gateway() == A
    await intake.commit_flushed(dfu(T, device=ABOVE, gateway=B))
    assert intake.gateway() == B


async def test_dfu_mode_survives_a_crash_before_it_is_written(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T))
    await intake.commit(dfu(T + 1, device=ABOVE))
    await intake.restart()
    await intake.ingest.flush()
    assert intake.state().boot_mode == "dfu"
