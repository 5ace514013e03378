"""Invariants of updates, whatever is written in any order and at any time."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.updates.update_state import Error, State
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.emulator.updates.harness import (
    BUTTON,
    BUTTON_MODEL,
    CLIP,
    CLIP_MODEL,
    EAST,
    GATEWAY,
    GATEWAY_MODEL,
    MOTION,
    ONE,
    THREE,
    TRACKER,
    TRACKER_MODEL,
    TWO,
    ReportedUpdateState,
    UpdateHarness,
    image,
    image_key_bytes,
)
from tests.examples import examples

MODELS = {
    ONE: MOTION,
    TWO: MOTION,
    THREE: MOTION,
    TRACKER: TRACKER_MODEL,
    CLIP: CLIP_MODEL,
    BUTTON: BUTTON_MODEL,
    GATEWAY: GATEWAY_MODEL,
}
VERSIONS = {
    MOTION: Version(3, 0, 0),
    TRACKER_MODEL: Version(3, 1, 4),
    CLIP_MODEL: Version(2, 0, 9),
    BUTTON_MODEL: Version(1, 0, 2),
    GATEWAY_MODEL: Version(2, 6, 0),
}
END_STATES = (State.DONE, State.FAILED)
LONG_SECONDS = 3600.0
"""Seconds within which every update ends that does not wait for a command."""

devices = st.sampled_from(list(MODELS))
versions = st.sampled_from([Version(3, 1, 5), Version(4, 0, 0), Version(4, 1, 0, 2), Version(1, 0, 0)])
Write = tuple[str, Mac, bytes]


def _download(device: Mac, model: ModelNumber | None, version: Version, stage: int) -> Write:
    return "8121", device, image_key_bytes(model or MODELS[device], version) + bytes((stage,))


def _broadcast(model: ModelNumber, version: Version, stage: int, targets: list[Mac]) -> Write:
    macs = b"".join(map(bytes.fromhex, targets))
    return "8124", GATEWAY, image_key_bytes(model, version) + bytes((stage, len(targets))) + macs


def _nordic(mac: Mac, model: ModelNumber, version: Version) -> Write:
    return "8131", GATEWAY, bytes.fromhex(mac) + image_key_bytes(model, version)


writes = st.one_of(
    st.builds(_download, devices, st.sampled_from([None, None, None, MOTION]), versions, st.integers(0, 1)),
    st.builds(
        _broadcast,
        st.sampled_from([MOTION, MOTION, TRACKER_MODEL]),
        versions,
        st.integers(0, 1),
        st.lists(st.sampled_from([ONE, TWO, THREE, TRACKER, BUTTON, EAST]), max_size=3),
    ),
    st.sampled_from([(Mac("c00000000040"), TRACKER_MODEL), (CLIP, CLIP_MODEL)]).flatmap(
        lambda pair: st.builds(_nordic, st.just(pair[0]), st.just(pair[1]), versions)
    ),
    st.tuples(st.just("8122"), devices, st.sampled_from([b"\0", b"\1"])),
    st.tuples(st.just("8126"), st.just(GATEWAY), st.sampled_from([b"\0", b"\1"])),
    st.tuples(
        st.just("8110"), st.sampled_from([ONE, TRACKER, CLIP]), st.sampled_from([b"\1", b"\2", b"\3", b"\4"])
    ),
    st.builds(
        lambda device, mode: ("8111", GATEWAY, bytes.fromhex(device) + bytes((mode,))),
        st.sampled_from([ONE, TRACKER, CLIP]),
        st.integers(1, 4),
    ),
    st.tuples(st.just("8300"), st.sampled_from([ONE, TWO, TRACKER, BUTTON, EAST, GATEWAY]), st.just(b"")),
    st.tuples(st.just("8302"), devices, st.just(b"")),
)
images = st.one_of(
    st.sampled_from([Error.NO_IMAGE, Error.BAD_HASH]),
    st.builds(image, st.sampled_from([None, None, None, MOTION]), st.integers(1, 40_000)),
)
pauses = st.sampled_from([0.0, 0.05, 0.2, 1.0, 2.9, 3.1, 7.0, 15.5, 40.0, 200.0, 700.0])
steps = st.lists(st.tuples(st.one_of(writes, writes, images), pauses), max_size=25)


def _run_script(harness: UpdateHarness, script: list[tuple[object, float]]) -> None:
    for operation, seconds in script:
        if isinstance(operation, tuple):
            identifier, device, raw = operation
            harness.send(device, "write", identifier, value=raw.hex())
        elif harness.image_requests:
            harness.deliver_image(operation)  # type: ignore[arg-type] # an image or an error
        harness.advance(seconds)
    harness.advance(15.0)  # until the last write has been executed
    while harness.image_requests:
        harness.deliver_image(image(None))
    harness.advance(LONG_SECONDS)


def _split_updates(states: list[ReportedUpdateState]) -> list[list[ReportedUpdateState]]:
    """Split reported states where another update begins."""
    updates: list[list[ReportedUpdateState]] = [[]]
    for each in states:
        if each.state is State.FETCHING and (not updates[-1] or updates[-1][-1].state is not State.FETCHING):
            updates.append([])
        updates[-1].append(each)
    return updates


def _check_states(states: list[ReportedUpdateState]) -> None:
    for update in _split_updates(states):
        unfailed = [each for each in update if each.state is not State.FAILED]
        assert unfailed == sorted(unfailed, key=lambda each: (each.state, each.percent))
        percents = [each.percent for each in update]
        assert percents == sorted(percents)
        ends = [each for each, _ in groupby(each[:3] for each in update if each.state in END_STATES)]
        assert len(ends) <= 1
        assert all((each.error is Error.NONE) == (each.state is not State.FAILED) for each in update)


def _check_versions(harness: UpdateHarness) -> None:
    for device, model in MODELS.items():
        states = harness.update_states(device) + harness.update_states(GATEWAY, "8130")
        installed = {
            each.image.version for each in states if each.state is State.DONE and each.image.model == model
        }
        reported = {
            Version(*bytes.fromhex(each.content["value"])) for each in harness.reports_of(device, "8001")
        }
        assert reported <= installed | {VERSIONS[model]}


def _may_be_stored(device: Mac, script: list[tuple[object, float]]) -> bool:
    """Return whether a device may be in storage mode, in which it answers no read.

    Its report of the mode is lost if the gateway is restarting, so what was written decides.
    """
    storage = bytes((DeviceMode.STORAGE,))
    orders = (("8110", device, storage), ("8111", GATEWAY, bytes.fromhex(device) + storage))
    return any(operation in orders for operation, _ in script)


def _check(script: list[tuple[object, float]], harness: UpdateHarness) -> None:
    _run_script(harness, script)
    for device in MODELS:
        _check_states(harness.update_states(device))
    _check_states(harness.update_states(GATEWAY, "8125"))
    _check_states(harness.update_states(GATEWAY, "8130"))
    _check_versions(harness)
    final_or_waiting = (State.IDLE, State.STAGED, *END_STATES)
    for identifier in ("8120", "8125", "8130"):
        assert ReportedUpdateState.from_bytes(harness.read(GATEWAY, identifier)).state in final_or_waiting
    for device in (ONE, TWO, THREE, TRACKER):
        modes = [each.content["value"] for each in harness.reports_of(device, "8110")]
        if modes[-1:] == ["01"] or _may_be_stored(device, script):
            continue
        assert ReportedUpdateState.from_bytes(harness.read(device, "8120")).state in final_or_waiting
    assert (
        harness.reports_of(TRACKER, "8110")[-1:] == []
        or harness.reports_of(TRACKER, "8110")[-1].content["value"] != "01"
    )


@settings(max_examples=examples(8))
@given(steps)
def test_every_update_ends_or_waits_for_a_command(script: list[tuple[object, float]]) -> None:
    _check(script, UpdateHarness())


@settings(max_examples=examples(8))
@given(steps)
def test_every_update_ends_or_waits_with_injected_failures(script: list[tuple[object, float]]) -> None:
    _check(script, UpdateHarness(update_fail=0.6))


@pytest.mark.part("fuzz")
@settings(max_examples=200)
@given(steps, st.sampled_from([0.0, 0.6]))
def test_every_update_ends_or_waits_in_a_long_search(
    script: list[tuple[object, float]], update_fail: float
) -> None:
    _check(script, UpdateHarness(update_fail=update_fail))


def test_an_image_that_no_update_waits_for_is_ignored() -> None:
    harness = UpdateHarness()
    harness.start(ONE)
    image_request = harness.image_requests[0]
    harness.deliver_image()
    harness.wait_for_state(State.DONE, ONE)
    state_count = len(harness.update_states(ONE))
    harness.gateway.on_image_fetched(image_request, image(None), harness.now)
    harness.gateway.on_image_failed(image_request, Error.NO_IMAGE, harness.now)
    harness.advance(10)
    assert len(harness.update_states(ONE)) == state_count


def test_no_image_is_requested_while_the_gateway_restarts() -> None:
    """Check that an update ends though its write may be in the mesh when the gateway goes down."""
    for delay in range(60):
        harness = UpdateHarness()
        harness.send(GATEWAY, "write", "8300", value="")
        harness.advance(delay / 400)
        harness.send(
            BUTTON, "write", "8121", value=(image_key_bytes(BUTTON_MODEL, Version(9, 0, 0)) + b"\0").hex()
        )
        harness.send(ONE, "write", "8121", value=(image_key_bytes() + b"\0").hex())
        harness.advance(100)
        if harness.image_requests:
            harness.deliver_image(image(None))
        harness.advance(300)
        for device in (ONE, BUTTON):
            assert ReportedUpdateState.from_bytes(harness.read(device, "8120")).state in (
                State.IDLE,
                *END_STATES,
            )
