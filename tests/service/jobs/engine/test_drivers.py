"""What each way of updating says, to whom, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from meshfleet.service.jobs.update.model import Step, to_device, to_gateway
from meshfleet.wire.codes import Operation, Status
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S
from tests.service.jobs.engine.stand import DEVICE, IMAGE, LEGACY, OURS, Stand, brought_to
from tests.tables import each_row

READ, WRITE = Operation.READ_DECODED, Operation.WRITE_DECODED
OTHER = DEVICE + 2
VERSION = to_device(Step.VERSION, Operation.READ, "8001")


def end_well(stand: Stand) -> None:
    """Two heartbeats are wanted: with the first and with the last the version is read."""
    assert stand.is_in(S.CONFIRMING)
    assert stand.beat() == VERSION
    assert stand.answer(0, OURS) is None
    assert stand.beat() == VERSION
    stand.answer(0, OURS)
    assert stand.is_in(S.SUCCEEDED)
    assert stand.move.is_evidence


@pytest.mark.rule("firmware-22", "firmware-34")
def test_by_download_the_device_is_told_and_asked() -> None:
    stand = Stand()
    assert stand.dispatch() == to_device(Step.START, WRITE, "start-firmware-update", {**IMAGE, "type": 0})
    assert stand.answer() is None
    assert stand.is_in(S.TRANSFERRING)
    assert stand.due() == to_device(Step.STATE, READ, "firmware-update-state")
    stand.told("transferring", 40)
    assert (stand.x.state, stand.x.progress) == (S.TRANSFERRING, 40)
    for word, reached in (("verifying", S.VERIFYING), ("applying", S.APPLYING), ("done", S.CONFIRMING)):
        stand.told(word, 100)
        assert stand.is_in(reached)
    end_well(stand)


@pytest.mark.rule("firmware-23")
def test_what_is_staged_waits_for_a_word() -> None:
    stand = Stand(stage=True)
    assert stand.dispatch() == to_device(Step.START, WRITE, "start-firmware-update", {**IMAGE, "type": 1})
    stand.answer()
    assert stand.told("staged", 100) is None
    assert stand.is_in(S.STAGED)
    stand.wish(is_applied=True)
    assert stand.happen_due() == to_device(Step.APPLY, WRITE, "firmware-update-control", {"action": 1})
    stand.answer()
    assert stand.is_in(S.APPLYING)
    stand.told("done", 100)
    end_well(stand)


@pytest.mark.rule("firmware-24")
def test_by_broadcast_the_gateway_is_told_for_all_and_then_each_device_is_asked() -> None:
    stand = Stand(Way.BROADCAST, batch=(DEVICE, OTHER))
    value = {**IMAGE, "type": 0, "targets": ["c0ffee000010", "c0ffee000012"]}
    assert stand.dispatch() == to_gateway(Step.START, WRITE, "start-firmware-broadcast", value)
    stand.answer()
    assert stand.due() == to_gateway(Step.STATE, READ, "firmware-broadcast-state")
    stand.told("transferring", 50, done=0, total=2)
    stand.told("verifying", 100, done=0, total=2)
    assert stand.is_in(S.TRANSFERRING)
    assert stand.due() == to_device(Step.OWN_STATE, READ, "firmware-update-state")
    stand.told("applying", 100)
    assert stand.is_in(S.APPLYING)
    stand.told("done", 100)
    end_well(stand)


@pytest.mark.rule("firmware-26")
@pytest.mark.parametrize(
    ("model", "mode", "mac"),
    [
        ("0018", to_device(Step.MODE, WRITE, "device-mode", "dfu"), "c0ffee000011"),
        (
            LEGACY,
            to_gateway(Step.MODE, WRITE, "legacy-device-mode-switch", {"mac": "c0ffee000010", "mode": 1}),
            "c0ffee000010",
        ),
    ],
)
def test_by_nordic_dfu_the_gateway_begins_when_the_device_is_in_dfu_mode(
    model: str, mode: object, mac: str
) -> None:
    stand = Stand(Way.NORDIC_DFU, model=model)
    image: dict[str, Any] = {**IMAGE, "modelNumber": int(model, 16)}
    assert stand.dispatch() == mode
    assert stand.answer() is None
    assert stand.in_dfu() == to_gateway(Step.START, WRITE, "start-nordic-dfu", {"mac": mac, **image})
    stand.answer()
    assert stand.due() == to_gateway(Step.STATE, READ, "nordic-dfu-state")
    stand.told("transferring", 30, mac=mac, **image)
    assert stand.x.progress == 30
    stand.told("done", 100, mac=mac, **image)
    end_well(stand)


def test_what_a_gateway_tells_of_another_device_is_not_ours() -> None:
    stand = brought_to(S.TRANSFERRING, Way.NORDIC_DFU)
    stand.told("transferring", 30, mac="c0ffee999999")
    assert (stand.x.state, stand.x.code) == (S.FAILED, "OVERRIDDEN")


ABORTS = {
    Way.DOWNLOAD: to_device(Step.ABORT, WRITE, "firmware-update-control", {"action": 0}),
    Way.BROADCAST: to_gateway(Step.ABORT, WRITE, "firmware-broadcast-control", {"action": 0}),
}


@each_row(
    ("way", "where"),
    [
        (Way.DOWNLOAD, S.TRANSFERRING),
        (Way.DOWNLOAD, S.VERIFYING),
        (Way.DOWNLOAD, S.STAGED),
        (Way.BROADCAST, S.TRANSFERRING),
    ],
)
@each_row(("status", "after"), [(Status.OK, S.CANCELED), (Status.FAILED, None), (Status.TIMEOUT, None)])
def test_canceling_aborts_what_can_be_taken_back(way: Way, where: S, status: Status, after: S | None) -> None:
    stand = brought_to(where, way, stage=where is S.STAGED)
    stand.wish(is_canceling=True)
    assert stand.happen_due() == ABORTS[way]
    stand.answer(status)
    assert stand.is_in(after or where)


@pytest.mark.parametrize("where", [S.APPLYING, S.CONFIRMING])
def test_canceling_lets_a_device_end_that_has_got_too_far(where: S) -> None:
    stand = brought_to(where)
    stand.wish(is_canceling=True)
    ask = stand.happen_due()
    assert ask is None or ask.step is Step.STATE
    assert stand.is_in(where)


@pytest.mark.rule("firmware-27")
def test_a_nordic_dfu_that_has_begun_is_followed_to_its_end() -> None:
    stand = brought_to(S.TRANSFERRING, Way.NORDIC_DFU)
    stand.wish(is_canceling=True)
    assert stand.happen_due() == to_gateway(Step.STATE, READ, "nordic-dfu-state")
    stand.answer(0, None)
    stand.told("done", 100, mac="c0ffee000011")
    assert stand.is_in(S.CONFIRMING)


def test_canceling_without_an_answer_ends_after_a_while() -> None:
    stand = brought_to(S.DISPATCHED)
    stand.unclear()
    stand.wish(is_canceling=True)
    stand.x = stand.lost()
    for _ in range(20):
        stand.happen_due()
        if stand.is_in(S.CANCELED):
            break
        stand.unclear()
    assert stand.is_in(S.CANCELED)
