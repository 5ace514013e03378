"""Whatever is written in whatever order, at whatever moment: updates keep their promises."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
ENDS = (State.DONE, State.FAILED)
LONG = 3600.0
"""Longer than anything lasts that waits for nobody."""

devices = st.sampled_from(list(MODELS))
versions = st.sampled_from([Version(3, 1, 5), Version(4, 0, 0), Version(4, 1, 0, 2), Version(1, 0, 0)])
Deed = tuple[str, Mac, bytes]


def _download(device: Mac, model: ModelNumber | None, version: Version, stage: int) -> Deed:
    return "8121", device, image_key_bytes(model or MODELS[device], version) + bytes((stage,))


def _broadcast(model: ModelNumber, version: Version, stage: int, targets: list[Mac]) -> Deed:
    macs = b"".join(map(bytes.fromhex, targets))
    return "8124", GATEWAY, image_key_bytes(model, version) + bytes((stage, len(targets))) + macs


def _nordic(mac: Mac, model: ModelNumber, version: Version) -> Deed:
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


def _live(house: UpdateHarness, script: list[tuple[object, float]]) -> None:
    for deed, pause in script:
        if isinstance(deed, tuple):
            identifier, device, raw = deed
            house.send(device, "write", identifier, value=raw.hex())
        elif house.questions:
            house.deliver_image(deed)  # type: ignore[arg-type] # an image or an error
        house.advance(pause)
    house.advance(15.0)  # until the last write has been served
    while house.questions:
        house.deliver_image(image(None))
    house.advance(LONG)


def _sagas(told: list[ReportedUpdateState]) -> list[list[ReportedUpdateState]]:
    """What was told, cut where another update begins."""
    sagas: list[list[ReportedUpdateState]] = [[]]
    for each in told:
        if each.state is State.FETCHING and (not sagas[-1] or sagas[-1][-1].state is not State.FETCHING):
            sagas.append([])
        sagas[-1].append(each)
    return sagas


def _check_told(told: list[ReportedUpdateState]) -> None:
    for saga in _sagas(told):
        moving = [each for each in saga if each.state is not State.FAILED]
        assert moving == sorted(moving, key=lambda each: (each.state, each.percent))
        percents = [each.percent for each in saga]
        assert percents == sorted(percents)
        ends = [each for each, _ in groupby(each[:3] for each in saga if each.state in ENDS)]
        assert len(ends) <= 1
        assert all((each.error is Error.NONE) == (each.state is not State.FAILED) for each in saga)


def _check_versions(house: UpdateHarness) -> None:
    for device, model in MODELS.items():
        told = house.update_states(device) + house.update_states(GATEWAY, "8130")
        done = {each.image.version for each in told if each.state is State.DONE and each.image.model == model}
        reported = {
            Version(*bytes.fromhex(each.content["value"])) for each in house.reports_of(device, "8001")
        }
        assert reported <= done | {VERSIONS[model]}


def _check(script: list[tuple[object, float]], house: UpdateHarness) -> None:
    _live(house, script)
    for device in MODELS:
        _check_told(house.update_states(device))
    _check_told(house.update_states(GATEWAY, "8125"))
    _check_told(house.update_states(GATEWAY, "8130"))
    _check_versions(house)
    waiting = (State.IDLE, State.STAGED, *ENDS)
    for identifier in ("8120", "8125", "8130"):
        assert ReportedUpdateState.from_bytes(house.read(GATEWAY, identifier)).state in waiting
    for device in (ONE, TWO, THREE, TRACKER):
        if house.reports_of(device, "8110")[-1:] and house.reports_of(device, "8110")[-1].content[
            "value"
        ] in ("01", "03"):
            continue
        assert ReportedUpdateState.from_bytes(house.read(device, "8120")).state in waiting
    assert (
        house.reports_of(TRACKER, "8110")[-1:] == []
        or house.reports_of(TRACKER, "8110")[-1].content["value"] != "01"
    )


@settings(max_examples=examples(8))
@given(steps)
def test_nothing_raises_and_every_update_ends_or_waits_for_a_word(script: list[tuple[object, float]]) -> None:
    _check(script, UpdateHarness())


@settings(max_examples=examples(8))
@given(steps)
def test_the_same_holds_when_updates_fail(script: list[tuple[object, float]]) -> None:
    _check(script, UpdateHarness(update_fail=0.6))


@pytest.mark.part("fuzz")
@settings(max_examples=200)
@given(steps, st.sampled_from([0.0, 0.6]))
def test_the_same_holds_in_a_long_search(script: list[tuple[object, float]], update_fail: float) -> None:
    _check(script, UpdateHarness(update_fail=update_fail))


def test_an_image_that_nobody_waits_for_is_ignored() -> None:
    house = UpdateHarness()
    house.start(ONE)
    question = house.questions[0]
    house.deliver_image()
    house.wait_for_state(State.DONE, ONE)
    told = len(house.update_states(ONE))
    house.gateway.on_image(question, image(None), house.now)
    house.gateway.on_image_failed(question, Error.NO_IMAGE, house.now)
    house.advance(10)
    assert len(house.update_states(ONE)) == told


def test_no_image_is_asked_for_while_the_gateway_restarts() -> None:
    """The write may still be on its way through the mesh when the gateway goes down."""
    for delay in range(60):
        house = UpdateHarness()
        house.send(GATEWAY, "write", "8300", value="")
        house.advance(delay / 400)
        house.send(
            BUTTON, "write", "8121", value=(image_key_bytes(BUTTON_MODEL, Version(9, 0, 0)) + b"\0").hex()
        )
        house.send(ONE, "write", "8121", value=(image_key_bytes() + b"\0").hex())
        house.advance(100)
        if house.questions:
            house.deliver_image(image(None))
        house.advance(300)
        for device in (ONE, BUTTON):
            assert ReportedUpdateState.from_bytes(house.read(device, "8120")).state in (State.IDLE, *ENDS)
