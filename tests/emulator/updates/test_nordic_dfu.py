"""Nordic DFU, from DFU mode to the new version."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.updates.update_state import Error, ImageKey, State
from meshfleet.protocol.codes import Status
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.emulator.updates.harness import (
    BAND_MODEL,
    CLIP,
    CLIP_MODEL,
    DEEP,
    EAST,
    GATEWAY,
    MOTION,
    NEWER,
    ONE,
    TRACKER,
    TRACKER_MODEL,
    WRISTBAND,
    ReportedUpdateState,
    UpdateHarness,
    image,
    image_key_bytes,
)

DFU = bytes((DeviceMode.DFU,))
DFU_MAC = Mac("c00000000040")
"""MAC of TRACKER in DFU mode."""
NEXT_VERSION = Version(3, 2, 0)


@pytest.fixture
def harness() -> UpdateHarness:
    return UpdateHarness()


def _enter(harness: UpdateHarness, device: Mac = TRACKER) -> None:
    assert harness.write(device, "8110", DFU) == 0
    harness.advance_until(lambda: harness.reports_of(device, "dfu"), within=30)


def _start(
    harness: UpdateHarness,
    mac: Mac = DFU_MAC,
    model: ModelNumber = TRACKER_MODEL,
    version: Version = NEXT_VERSION,
) -> int:
    return harness.write(GATEWAY, "8131", bytes.fromhex(mac) + image_key_bytes(model, version))


def _list_states(harness: UpdateHarness) -> list[ReportedUpdateState]:
    return [each for each in harness.update_states(GATEWAY, "8130") if each.state]


def _wait_for_end(harness: UpdateHarness) -> ReportedUpdateState:
    harness.advance_until(lambda: _list_states(harness)[-1].state in (State.DONE, State.FAILED))
    return _list_states(harness)[-1]


@pytest.mark.rule("firmware-26", "firmware-30")
def test_a_device_is_updated_by_nordic_dfu(harness: UpdateHarness) -> None:
    assert harness.read(GATEWAY, "8130") == bytes(15)
    _enter(harness)
    assert _start(harness) == 0
    harness.deliver_image(image(TRACKER_MODEL, 100_000))
    end = _wait_for_end(harness)
    assert end[:3] == (State.DONE, 100, Error.NONE)
    assert end.image == ImageKey(TRACKER_MODEL, NEXT_VERSION)
    assert end.rest.hex() == DFU_MAC
    states = _list_states(harness)
    assert states == sorted(states, key=lambda each: (each.state, each.percent))
    assert harness.version(TRACKER) == NEXT_VERSION
    assert harness.read(TRACKER, "8110") == bytes((DeviceMode.CONNECTED,))


@pytest.mark.rule("firmware-26")
def test_a_device_in_dfu_mode_is_reported_with_its_regular_mac(harness: UpdateHarness) -> None:
    _enter(harness)
    harness.advance(60)
    reports = harness.reports_of(TRACKER, "dfu")
    assert len(reports) >= 5
    for report in reports:
        assert report.content["parent"] in (GATEWAY, EAST, "c00000000012", "c00000000014")
        assert -97 <= report.content["rssi"] < -20
        assert "seq" not in report.content
    assert [each for each in harness.reports if each.device == DFU_MAC] == []
    assert harness.reports_of(TRACKER, "8110")[-1].content["value"] == "01"


@pytest.mark.rule("firmware-29")
def test_a_device_in_dfu_mode_has_only_dfu_reports(harness: UpdateHarness) -> None:
    _enter(harness)
    started = harness.now
    assert harness.request(TRACKER, "read", "8001")["status"] in (Status.TIMEOUT, Status.UNREACHABLE)
    _start(harness)
    harness.deliver_image(image(None, 300_000))
    harness.wait_for_state(State.APPLYING, GATEWAY, "8130")
    reports_meanwhile = [each for each in harness.reports if each.device == TRACKER and each.t > started]
    assert {each.kind for each in reports_meanwhile} == {"dfu"}


@pytest.mark.rule("firmware-29")
def test_a_device_reports_its_new_version_after_the_update(harness: UpdateHarness) -> None:
    _enter(harness)
    _start(harness)
    harness.deliver_image(image(TRACKER_MODEL))
    harness.wait_for_state(State.APPLYING, GATEWAY, "8130")
    report_count = len(harness.reports_of(TRACKER, "8001"))
    heartbeat_count = len(harness.reports_of(TRACKER, "heartbeat"))
    _wait_for_end(harness)
    harness.advance(60)
    assert len(harness.reports_of(TRACKER, "heartbeat")) > heartbeat_count
    versions = [each.content["value"] for each in harness.reports_of(TRACKER, "8001")[report_count:]]
    assert set(versions) == {"030200"}


@pytest.mark.rule("firmware-14")
def test_an_nrf51_keeps_its_mac_in_dfu_mode(harness: UpdateHarness) -> None:
    _enter(harness, CLIP)
    assert _start(harness, Mac("c00000000043"), CLIP_MODEL) == Status.UNREACHABLE
    assert _start(harness, CLIP, CLIP_MODEL, Version(1, 0, 0)) == 0  # its bootloader accepts older versions
    harness.deliver_image(image(CLIP_MODEL))
    assert _wait_for_end(harness)[:3] == (State.DONE, 100, Error.NONE)
    assert harness.version(CLIP) == Version(1, 0, 0)
    assert harness.read(CLIP, "8110") == bytes((DeviceMode.UNCONNECTED,))


@pytest.mark.rule("firmware-26")
def test_the_gateway_can_put_a_legacy_device_into_dfu_mode(harness: UpdateHarness) -> None:
    assert harness.write(GATEWAY, "8111", bytes.fromhex(CLIP) + DFU) == 0
    harness.advance_until(lambda: harness.reports_of(CLIP, "dfu"), within=30)
    assert _start(harness, CLIP, CLIP_MODEL) == 0


def test_an_unknown_device_cannot_be_put_into_dfu_mode(harness: UpdateHarness) -> None:
    assert harness.write(GATEWAY, "8111", bytes.fromhex("c0ffee000000") + DFU) == Status.UNREACHABLE
    assert harness.write(GATEWAY, "8111", bytes.fromhex(GATEWAY) + DFU) == Status.UNREACHABLE


@pytest.mark.parametrize("device", [EAST, GATEWAY])
def test_a_product_without_dfu_mode_does_not_enter_it(harness: UpdateHarness, device: Mac) -> None:
    assert harness.write(device, "8110", DFU) == Status.NOT_SUPPORTED


def test_only_a_device_that_advertises_with_the_given_mac_is_updated(harness: UpdateHarness) -> None:
    assert _start(harness) == Status.UNREACHABLE
    _enter(harness)
    for other_mac in (TRACKER, ONE, Mac("c0ffee000000"), GATEWAY):
        assert _start(harness, other_mac) == Status.UNREACHABLE
    assert harness.all_image_requests == []


@pytest.mark.rule("firmware-28")
def test_a_device_in_range_of_an_extender_only_cannot_be_updated(harness: UpdateHarness) -> None:
    _enter(harness, WRISTBAND)
    assert {each.content["parent"] for each in harness.reports_of(WRISTBAND, "dfu")} == {DEEP}
    assert _start(harness, Mac("c00000000047"), BAND_MODEL) == Status.UNREACHABLE


def test_only_one_transfer_runs_at_a_time(harness: UpdateHarness) -> None:
    _enter(harness)
    _enter(harness, CLIP)
    assert _start(harness) == 0
    assert _start(harness, CLIP, CLIP_MODEL) == Status.BUSY
    assert _start(harness) == Status.BUSY
    harness.deliver_image(image(TRACKER_MODEL))
    assert _start(harness, CLIP, CLIP_MODEL) == Status.BUSY
    _wait_for_end(harness)
    assert _start(harness, CLIP, CLIP_MODEL) == 0


# Failures


@pytest.mark.parametrize("error", [Error.NO_IMAGE, Error.BAD_HASH])
def test_a_transfer_can_be_retried_after_a_failure(harness: UpdateHarness, error: Error) -> None:
    _enter(harness)
    _start(harness)
    harness.deliver_image(error)
    assert _list_states(harness)[-1][:3] == (State.FAILED, 0, error)
    assert _start(harness) == 0
    harness.deliver_image(image(TRACKER_MODEL))
    assert _wait_for_end(harness).state is State.DONE


@pytest.mark.parametrize("model", [MOTION, TRACKER_MODEL])
def test_an_image_for_another_model_fails(harness: UpdateHarness, model: ModelNumber) -> None:
    _enter(harness)
    _start(harness, model=model)
    harness.deliver_image(image(MOTION))
    assert _list_states(harness)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)
    assert _start(harness) == 0


@pytest.mark.parametrize(("version", "error"), [("3.1.3", 4), ("3.1.4-beta.9", 4), ("3.1.4", 0)])
def test_the_bootloader_of_an_nrf52_rejects_older_versions(
    harness: UpdateHarness, version: str, error: int
) -> None:
    _enter(harness)
    _start(harness, version=Version.parse(version))
    harness.deliver_image(image(TRACKER_MODEL))
    end = _wait_for_end(harness)
    assert (end.state is State.FAILED, end.error) == (bool(error), error)


def test_a_restart_of_the_gateway_ends_the_transfer_and_the_device_stays_in_dfu_mode(
    harness: UpdateHarness,
) -> None:
    _enter(harness)
    _start(harness)
    harness.deliver_image(image(TRACKER_MODEL, 300_000))
    harness.write(GATEWAY, "8300", b"")
    harness.advance(30)
    assert ReportedUpdateState.from_bytes(harness.read(GATEWAY, "8130"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )
    assert _start(harness) == 0
    harness.deliver_image(image(TRACKER_MODEL))
    assert _wait_for_end(harness).state is State.DONE


# End of DFU mode


def test_a_device_leaves_dfu_mode_after_a_timeout(harness: UpdateHarness) -> None:
    _enter(harness)
    harness.advance_until(
        lambda: harness.reports_of(TRACKER, "8110")[-1].content["value"] == "02", within=1200
    )
    harness.advance(70)
    assert harness.version(TRACKER) == Version(3, 1, 4)
    last = harness.reports_of(TRACKER, "dfu")[-1].t
    assert harness.reports_of(TRACKER, "heartbeat")[-1].t > last


def test_a_device_with_a_failed_download_leaves_dfu_mode_after_a_timeout(
    harness: UpdateHarness,
) -> None:
    harness.start(TRACKER, TRACKER_MODEL, NEWER)
    harness.deliver_image(Error.NO_IMAGE)
    _enter(harness)
    harness.advance_until(
        lambda: harness.reports_of(TRACKER, "8110")[-1].content["value"] == "02", within=1200
    )


@pytest.mark.rule("firmware-27")
def test_a_transfer_that_starts_late_is_not_ended_by_the_timeout(harness: UpdateHarness) -> None:
    _enter(harness)
    harness.advance(580)
    assert _start(harness) == 0
    started = harness.now
    harness.deliver_image(image(TRACKER_MODEL, 200_000))
    harness.wait_for_state(State.APPLYING, GATEWAY, "8130")
    reports_meanwhile = [
        each for each in harness.reports if each.device == TRACKER and started < each.t < harness.now - 1
    ]
    assert {each.kind for each in reports_meanwhile} == {"dfu"}
    assert _wait_for_end(harness).state is State.DONE


@pytest.mark.rule("firmware-27")
def test_a_transfer_cannot_be_aborted(harness: UpdateHarness) -> None:
    _enter(harness)
    _start(harness)
    harness.deliver_image(image(TRACKER_MODEL, 100_000))
    for mode in (DeviceMode.CONNECTED, DeviceMode.UNCONNECTED, DeviceMode.STORAGE):
        assert harness.write(GATEWAY, "8111", bytes.fromhex(TRACKER) + bytes((mode,))) != Status.OK
    assert harness.write(GATEWAY, "8126", b"\0") == Status.FAILED
    assert _wait_for_end(harness).state is State.DONE


def test_a_device_that_enters_dfu_mode_while_verifying_leaves_it_again(
    harness: UpdateHarness,
) -> None:
    harness.start(TRACKER, TRACKER_MODEL, NEWER)
    harness.deliver_image(image(TRACKER_MODEL, 300))
    harness.wait_for_state(State.VERIFYING, TRACKER)
    harness.write(TRACKER, "8110", DFU)
    harness.advance(900)
    assert ReportedUpdateState.from_bytes(harness.read(TRACKER, "8120")).state in (State.DONE, State.FAILED)
    assert harness.read(TRACKER, "8110") == bytes((DeviceMode.CONNECTED,))


def test_entering_dfu_mode_twice_changes_nothing(harness: UpdateHarness) -> None:
    _enter(harness)
    assert harness.write(GATEWAY, "8111", bytes.fromhex(TRACKER) + DFU) == 0
    harness.advance(30)
    times = [each.t for each in harness.reports_of(TRACKER, "dfu")]
    assert len(times) == len(set(times))
    assert min(b - a for a, b in pairwise(times)) > 9


def test_a_malformed_value_starts_nothing(harness: UpdateHarness) -> None:
    for value in (b"", bytes.fromhex(DFU_MAC), bytes.fromhex(DFU_MAC) + image_key_bytes() + b"\0"):
        assert harness.write(GATEWAY, "8131", value) == Status.INVALID_VALUE
    assert harness.write(TRACKER, "8131", bytes(12)) == Status.NOT_SUPPORTED
