"""What each way of updating says, to whom, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.row_tables import each_row
from tests.service.jobs.updates.harness import DEVICE, IMAGE, LEGACY, OURS, UpdateHarness, harness_in_state

from meshfleet.protocol.codes import Operation, Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
from meshfleet.service.jobs.updates.model import UpdateStep, build_device_request, build_gateway_request

READ, WRITE = Operation.READ_DECODED, Operation.WRITE_DECODED
OTHER = DEVICE + 2
VERSION = build_device_request(UpdateStep.CONFIRM_VERSION, Operation.READ, "8001")


def end_well(stand: UpdateHarness) -> None:
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
    stand = UpdateHarness()
    assert stand.dispatch() == build_device_request(
        UpdateStep.START, WRITE, "start-firmware-update", {**IMAGE, "type": 0}
    )
    assert stand.answer() is None
    assert stand.is_in(S.TRANSFERRING)
    assert stand.due() == build_device_request(UpdateStep.STATE, READ, "firmware-update-state")
    stand.answer_state("transferring", 40)
    assert (stand.x.state, stand.x.progress) == (S.TRANSFERRING, 40)
    for word, reached in (("verifying", S.VERIFYING), ("applying", S.APPLYING), ("done", S.CONFIRMING)):
        stand.answer_state(word, 100)
        assert stand.is_in(reached)
    end_well(stand)


@pytest.mark.rule("firmware-23")
def test_what_is_staged_waits_for_a_word() -> None:
    stand = UpdateHarness(stage=True)
    assert stand.dispatch() == build_device_request(
        UpdateStep.START, WRITE, "start-firmware-update", {**IMAGE, "type": 1}
    )
    stand.answer()
    assert stand.answer_state("staged", 100) is None
    assert stand.is_in(S.STAGED)
    stand.change_spec(is_applied=True)
    assert stand.happen_due() == build_device_request(
        UpdateStep.APPLY, WRITE, "firmware-update-control", {"action": 1}
    )
    stand.answer()
    assert stand.is_in(S.APPLYING)
    stand.answer_state("done", 100)
    end_well(stand)


@pytest.mark.rule("firmware-24")
def test_by_broadcast_the_gateway_is_told_for_all_and_then_each_device_is_asked() -> None:
    stand = UpdateHarness(UpdateMethod.BROADCAST, batch=(DEVICE, OTHER))
    value = {**IMAGE, "type": 0, "targets": ["c0ffee000010", "c0ffee000012"]}
    assert stand.dispatch() == build_gateway_request(
        UpdateStep.START, WRITE, "start-firmware-broadcast", value
    )
    stand.answer()
    assert stand.due() == build_gateway_request(UpdateStep.STATE, READ, "firmware-broadcast-state")
    stand.answer_state("transferring", 50, done=0, total=2)
    stand.answer_state("verifying", 100, done=0, total=2)
    assert stand.is_in(S.TRANSFERRING)
    assert stand.due() == build_device_request(UpdateStep.DEVICE_STATE, READ, "firmware-update-state")
    stand.answer_state("applying", 100)
    assert stand.is_in(S.APPLYING)
    stand.answer_state("done", 100)
    end_well(stand)


@pytest.mark.rule("firmware-26")
@pytest.mark.parametrize(
    ("model", "mode", "mac"),
    [
        ("0018", build_device_request(UpdateStep.ENTER_DFU, WRITE, "device-mode", "dfu"), "c0ffee000011"),
        (
            LEGACY,
            build_gateway_request(
                UpdateStep.ENTER_DFU, WRITE, "legacy-device-mode-switch", {"mac": "c0ffee000010", "mode": 1}
            ),
            "c0ffee000010",
        ),
    ],
)
def test_by_nordic_dfu_the_gateway_begins_when_the_device_is_in_dfu_mode(
    model: str, mode: object, mac: str
) -> None:
    stand = UpdateHarness(UpdateMethod.NORDIC_DFU, model=model)
    image: dict[str, Any] = {**IMAGE, "modelNumber": int(model, 16)}
    assert stand.dispatch() == mode
    assert stand.answer() is None
    assert stand.in_dfu() == build_gateway_request(
        UpdateStep.START, WRITE, "start-nordic-dfu", {"mac": mac, **image}
    )
    stand.answer()
    assert stand.due() == build_gateway_request(UpdateStep.STATE, READ, "nordic-dfu-state")
    stand.answer_state("transferring", 30, mac=mac, **image)
    assert stand.x.progress == 30
    stand.answer_state("done", 100, mac=mac, **image)
    end_well(stand)


def test_what_a_gateway_tells_of_another_device_is_not_ours() -> None:
    stand = harness_in_state(S.TRANSFERRING, UpdateMethod.NORDIC_DFU)
    stand.answer_state("transferring", 30, mac="c0ffee999999")
    assert (stand.x.state, stand.x.code) == (S.FAILED, "OVERRIDDEN")


ABORTS = {
    UpdateMethod.DOWNLOAD: build_device_request(
        UpdateStep.ABORT, WRITE, "firmware-update-control", {"action": 0}
    ),
    UpdateMethod.BROADCAST: build_gateway_request(
        UpdateStep.ABORT, WRITE, "firmware-broadcast-control", {"action": 0}
    ),
}


@each_row(
    ("way", "where"),
    [
        (UpdateMethod.DOWNLOAD, S.TRANSFERRING),
        (UpdateMethod.DOWNLOAD, S.VERIFYING),
        (UpdateMethod.DOWNLOAD, S.STAGED),
        (UpdateMethod.BROADCAST, S.TRANSFERRING),
    ],
)
@each_row(("status", "after"), [(Status.OK, S.CANCELED), (Status.FAILED, None), (Status.TIMEOUT, None)])
def test_canceling_aborts_what_can_be_taken_back(
    way: UpdateMethod, where: S, status: Status, after: S | None
) -> None:
    stand = harness_in_state(where, way, stage=where is S.STAGED)
    stand.change_spec(is_canceling=True)
    assert stand.happen_due() == ABORTS[way]
    stand.answer(status)
    assert stand.is_in(after or where)


@pytest.mark.parametrize("where", [S.APPLYING, S.CONFIRMING])
def test_canceling_lets_a_device_end_that_has_got_too_far(where: S) -> None:
    stand = harness_in_state(where)
    stand.change_spec(is_canceling=True)
    ask = stand.happen_due()
    assert ask is None or ask.step is UpdateStep.STATE
    assert stand.is_in(where)


@pytest.mark.rule("firmware-27")
def test_a_nordic_dfu_that_has_begun_is_followed_to_its_end() -> None:
    stand = harness_in_state(S.TRANSFERRING, UpdateMethod.NORDIC_DFU)
    stand.change_spec(is_canceling=True)
    assert stand.happen_due() == build_gateway_request(UpdateStep.STATE, READ, "nordic-dfu-state")
    stand.answer(0, None)
    stand.answer_state("done", 100, mac="c0ffee000011")
    assert stand.is_in(S.CONFIRMING)


def test_canceling_without_an_answer_ends_after_a_while() -> None:
    stand = harness_in_state(S.DISPATCHED)
    stand.unclear()
    stand.change_spec(is_canceling=True)
    stand.x = stand.without_request()
    for _ in range(20):
        stand.happen_due()
        if stand.is_in(S.CANCELED):
            break
        stand.unclear()
    assert stand.is_in(S.CANCELED)
