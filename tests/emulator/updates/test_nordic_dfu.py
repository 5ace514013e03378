"""Nordic DFU: from the mode of the device to its new version."""

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
ADVERTISED = Mac("c00000000040")
"""What TRACKER calls itself in DFU mode."""
NEXT = Version(3, 2, 0)


@pytest.fixture
def house() -> UpdateHarness:
    return UpdateHarness()


def _enter(house: UpdateHarness, device: Mac = TRACKER) -> None:
    assert house.write(device, "8110", DFU) == 0
    house.advance_until(lambda: house.reports_of(device, "dfu"), within=30)


def _start(
    house: UpdateHarness, mac: Mac = ADVERTISED, model: ModelNumber = TRACKER_MODEL, version: Version = NEXT
) -> int:
    return house.write(GATEWAY, "8131", bytes.fromhex(mac) + image_key_bytes(model, version))


def _told(house: UpdateHarness) -> list[ReportedUpdateState]:
    return [each for each in house.update_states(GATEWAY, "8130") if each.state]


def _ended(house: UpdateHarness) -> ReportedUpdateState:
    house.advance_until(lambda: _told(house)[-1].state in (State.DONE, State.FAILED))
    return _told(house)[-1]


@pytest.mark.rule("firmware-26", "firmware-30")
def test_a_device_is_updated_by_nordic_dfu(house: UpdateHarness) -> None:
    assert house.read(GATEWAY, "8130") == bytes(15)
    _enter(house)
    assert _start(house) == 0
    house.deliver_image(image(TRACKER_MODEL, 100_000))
    end = _ended(house)
    assert end[:3] == (State.DONE, 100, Error.NONE)
    assert end.image == ImageKey(TRACKER_MODEL, NEXT)
    assert end.rest.hex() == ADVERTISED
    told = _told(house)
    assert told == sorted(told, key=lambda each: (each.state, each.percent))
    assert house.version(TRACKER) == NEXT
    assert house.read(TRACKER, "8110") == bytes((DeviceMode.CONNECTED,))


@pytest.mark.rule("firmware-26")
def test_a_device_in_dfu_mode_is_reported_under_its_own_mac(house: UpdateHarness) -> None:
    _enter(house)
    house.advance(60)
    reports = house.reports_of(TRACKER, "dfu")
    assert len(reports) >= 5
    for report in reports:
        assert report.content["parent"] in (GATEWAY, EAST, "c00000000012", "c00000000014")
        assert -97 <= report.content["rssi"] < -20
        assert "seq" not in report.content
    assert [each for each in house.reports if each.device == ADVERTISED] == []
    assert house.reports_of(TRACKER, "8110")[-1].content["value"] == "01"


@pytest.mark.rule("firmware-29")
def test_a_device_in_dfu_mode_does_nothing_else(house: UpdateHarness) -> None:
    _enter(house)
    began = house.now
    assert house.request(TRACKER, "read", "8001")["status"] in (Status.TIMEOUT, Status.UNREACHABLE)
    _start(house)
    house.deliver_image(image(None, 300_000))
    house.wait_for_state(State.APPLYING, GATEWAY, "8130")
    during = [each for each in house.reports if each.device == TRACKER and each.t > began]
    assert {each.kind for each in during} == {"dfu"}


@pytest.mark.rule("firmware-29")
def test_a_device_reports_its_new_version_when_it_is_back(house: UpdateHarness) -> None:
    _enter(house)
    _start(house)
    house.deliver_image(image(TRACKER_MODEL))
    house.wait_for_state(State.APPLYING, GATEWAY, "8130")
    before = len(house.reports_of(TRACKER, "8001"))
    beats = len(house.reports_of(TRACKER, "heartbeat"))
    _ended(house)
    house.advance(60)
    assert len(house.reports_of(TRACKER, "heartbeat")) > beats
    told = [each.content["value"] for each in house.reports_of(TRACKER, "8001")[before:]]
    assert set(told) == {"030200"}


@pytest.mark.rule("firmware-14")
def test_an_nrf51_keeps_its_mac_in_dfu_mode(house: UpdateHarness) -> None:
    _enter(house, CLIP)
    assert _start(house, Mac("c00000000043"), CLIP_MODEL) == Status.UNREACHABLE
    assert _start(house, CLIP, CLIP_MODEL, Version(1, 0, 0)) == 0  # its bootloader allows to go back
    house.deliver_image(image(CLIP_MODEL))
    assert _ended(house)[:3] == (State.DONE, 100, Error.NONE)
    assert house.version(CLIP) == Version(1, 0, 0)
    assert house.read(CLIP, "8110") == bytes((DeviceMode.UNCONNECTED,))


@pytest.mark.rule("firmware-26")
def test_a_legacy_device_is_sent_into_dfu_mode_by_its_gateway(house: UpdateHarness) -> None:
    assert house.write(GATEWAY, "8111", bytes.fromhex(CLIP) + DFU) == 0
    house.advance_until(lambda: house.reports_of(CLIP, "dfu"), within=30)
    assert _start(house, CLIP, CLIP_MODEL) == 0


def test_a_stranger_cannot_be_sent_into_dfu_mode(house: UpdateHarness) -> None:
    assert house.write(GATEWAY, "8111", bytes.fromhex("c0ffee000000") + DFU) == Status.UNREACHABLE
    assert house.write(GATEWAY, "8111", bytes.fromhex(GATEWAY) + DFU) == Status.UNREACHABLE


@pytest.mark.parametrize("device", [EAST, GATEWAY])
def test_a_product_without_dfu_mode_does_not_enter_it(house: UpdateHarness, device: Mac) -> None:
    assert house.write(device, "8110", DFU) == Status.NOT_SUPPORTED


def test_nobody_is_updated_who_does_not_advertise_under_that_mac(house: UpdateHarness) -> None:
    assert _start(house) == Status.UNREACHABLE
    _enter(house)
    for wrong in (TRACKER, ONE, Mac("c0ffee000000"), GATEWAY):
        assert _start(house, wrong) == Status.UNREACHABLE
    assert house.all_questions == []


@pytest.mark.rule("firmware-28")
def test_a_device_that_only_an_extender_hears_cannot_be_updated(house: UpdateHarness) -> None:
    _enter(house, WRISTBAND)
    assert {each.content["parent"] for each in house.reports_of(WRISTBAND, "dfu")} == {DEEP}
    assert _start(house, Mac("c00000000047"), BAND_MODEL) == Status.UNREACHABLE


def test_one_transfer_at_a_time(house: UpdateHarness) -> None:
    _enter(house)
    _enter(house, CLIP)
    assert _start(house) == 0
    assert _start(house, CLIP, CLIP_MODEL) == Status.BUSY
    assert _start(house) == Status.BUSY
    house.deliver_image(image(TRACKER_MODEL))
    assert _start(house, CLIP, CLIP_MODEL) == Status.BUSY
    _ended(house)
    assert _start(house, CLIP, CLIP_MODEL) == 0


# What goes wrong


@pytest.mark.parametrize("error", [Error.NO_IMAGE, Error.BAD_HASH])
def test_a_device_can_be_tried_again_after_a_failure(house: UpdateHarness, error: Error) -> None:
    _enter(house)
    _start(house)
    house.deliver_image(error)
    assert _told(house)[-1][:3] == (State.FAILED, 0, error)
    assert _start(house) == 0
    house.deliver_image(image(TRACKER_MODEL))
    assert _ended(house).state is State.DONE


@pytest.mark.parametrize("model", [MOTION, TRACKER_MODEL])
def test_an_image_for_another_model_fails(house: UpdateHarness, model: ModelNumber) -> None:
    _enter(house)
    _start(house, model=model)
    house.deliver_image(image(MOTION))
    assert _told(house)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)
    assert _start(house) == 0


@pytest.mark.parametrize(("version", "error"), [("3.1.3", 4), ("3.1.4-beta.9", 4), ("3.1.4", 0)])
def test_the_bootloader_of_an_nrf52_refuses_to_go_back(
    house: UpdateHarness, version: str, error: int
) -> None:
    _enter(house)
    _start(house, version=Version.parse(version))
    house.deliver_image(image(TRACKER_MODEL))
    end = _ended(house)
    assert (end.state is State.FAILED, end.error) == (bool(error), error)


def test_a_restart_of_the_gateway_loses_the_transfer_and_the_device_waits_on(house: UpdateHarness) -> None:
    _enter(house)
    _start(house)
    house.deliver_image(image(TRACKER_MODEL, 300_000))
    house.write(GATEWAY, "8300", b"")
    house.advance(30)
    assert ReportedUpdateState.from_bytes(house.read(GATEWAY, "8130"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )
    assert _start(house) == 0
    house.deliver_image(image(TRACKER_MODEL))
    assert _ended(house).state is State.DONE


# The end of DFU mode


def test_a_device_that_nobody_updates_leaves_dfu_mode_by_itself(house: UpdateHarness) -> None:
    _enter(house)
    house.advance_until(lambda: house.reports_of(TRACKER, "8110")[-1].content["value"] == "02", within=1200)
    house.advance(70)
    assert house.version(TRACKER) == Version(3, 1, 4)
    last = house.reports_of(TRACKER, "dfu")[-1].t
    assert house.reports_of(TRACKER, "heartbeat")[-1].t > last


def test_a_device_that_was_once_updated_by_download_leaves_dfu_mode_by_itself_too(
    house: UpdateHarness,
) -> None:
    house.start(TRACKER, TRACKER_MODEL, NEWER)
    house.deliver_image(Error.NO_IMAGE)
    _enter(house)
    house.advance_until(lambda: house.reports_of(TRACKER, "8110")[-1].content["value"] == "02", within=1200)


@pytest.mark.rule("firmware-27")
def test_a_transfer_that_begins_late_is_not_cut_off_by_the_end_of_dfu_mode(house: UpdateHarness) -> None:
    _enter(house)
    house.advance(580)
    assert _start(house) == 0
    began = house.now
    house.deliver_image(image(TRACKER_MODEL, 200_000))
    house.wait_for_state(State.APPLYING, GATEWAY, "8130")
    during = [each for each in house.reports if each.device == TRACKER and began < each.t < house.now - 1]
    assert {each.kind for each in during} == {"dfu"}
    assert _ended(house).state is State.DONE


@pytest.mark.rule("firmware-27")
def test_a_transfer_cannot_be_aborted(house: UpdateHarness) -> None:
    _enter(house)
    _start(house)
    house.deliver_image(image(TRACKER_MODEL, 100_000))
    for mode in (DeviceMode.CONNECTED, DeviceMode.UNCONNECTED, DeviceMode.STORAGE):
        assert house.write(GATEWAY, "8111", bytes.fromhex(TRACKER) + bytes((mode,))) != Status.OK
    assert house.write(GATEWAY, "8126", b"\0") == Status.FAILED
    assert _ended(house).state is State.DONE


def test_a_device_that_goes_into_dfu_mode_while_it_checks_a_download_comes_out_again(
    house: UpdateHarness,
) -> None:
    house.start(TRACKER, TRACKER_MODEL, NEWER)
    house.deliver_image(image(TRACKER_MODEL, 300))
    house.wait_for_state(State.VERIFYING, TRACKER)
    house.write(TRACKER, "8110", DFU)
    house.advance(900)
    assert ReportedUpdateState.from_bytes(house.read(TRACKER, "8120")).state in (State.DONE, State.FAILED)
    assert house.read(TRACKER, "8110") == bytes((DeviceMode.CONNECTED,))


def test_entering_dfu_mode_twice_changes_nothing(house: UpdateHarness) -> None:
    _enter(house)
    assert house.write(GATEWAY, "8111", bytes.fromhex(TRACKER) + DFU) == 0
    house.advance(30)
    times = [each.t for each in house.reports_of(TRACKER, "dfu")]
    assert len(times) == len(set(times))
    assert min(b - a for a, b in pairwise(times)) > 9


def test_a_wrong_value_starts_nothing(house: UpdateHarness) -> None:
    for value in (b"", bytes.fromhex(ADVERTISED), bytes.fromhex(ADVERTISED) + image_key_bytes() + b"\0"):
        assert house.write(GATEWAY, "8131", value) == Status.INVALID_VALUE
    assert house.write(TRACKER, "8131", bytes(12)) == Status.NOT_SUPPORTED
