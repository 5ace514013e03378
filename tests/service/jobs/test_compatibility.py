from __future__ import annotations

import pytest

from meshfleet.protocol.ids import Version
from meshfleet.protocol.products import UpdateMethod
from meshfleet.service.jobs.compatibility import (
    DeviceFacts,
    Exclusion,
    ExclusionCode,
    FirmwareRequirement,
    find_exclusion,
    select_method,
)
from tests.row_tables import each_row

MODEL = 0x0018
NEED = FirmwareRequirement(MODEL, Version(3, 4, 2))


def fits(device: DeviceFacts, need: FirmwareRequirement) -> str | None:
    found = find_exclusion(device, need)
    return None if found is None else found.code


def running(version: str, beta: int = 0) -> DeviceFacts:
    return DeviceFacts(MODEL, "1.0.0", version, beta)


@pytest.mark.rule("rest-119")
def test_a_device_of_the_model_with_an_older_version_fits() -> None:
    assert fits(running("3.4.1"), NEED) is None
    assert fits(running("3.4.2", beta=7), NEED) is None


@pytest.mark.rule("rest-119")
@each_row(("model", "told"), [(0x0011, "its model is 0011"), (0, "its model is unknown")])
def test_a_device_of_another_model_does_not_fit(model: int, told: str) -> None:
    found = find_exclusion(DeviceFacts(model, "1.0.0", "3.4.1", 0), NEED)
    assert found == Exclusion(ExclusionCode.WRONG_MODEL, f"{told}, and the firmware is for 0018")


@pytest.mark.rule("rest-119")
@each_row(
    ("hardware", "list_", "fitting"),
    [
        ("1.0.0", (), True),
        ("0.0.0", (), True),
        ("1.0.0", ("1.0.0", "2.0.0"), True),
        ("1.0.1", ("1.0.0", "2.0.0"), False),
        ("0.0.0", ("1.0.0",), False),
    ],
)
def test_the_hardware_must_be_among_those_of_the_firmware(
    hardware: str, list_: tuple[str, ...], *, fitting: bool
) -> None:
    need = NEED._replace(hardware=frozenset(list_))
    expected = None if fitting else "WRONG_HARDWARE"
    assert fits(DeviceFacts(MODEL, hardware, "3.4.1", 0), need) == expected


@pytest.mark.rule("rest-119", "rest-145")
@each_row("version", ["3.4.2", "3.4.2-beta.4"])
def test_who_runs_the_very_version_is_there_already(version: str) -> None:
    need = NEED._replace(version=Version.parse(version), allow_downgrade=True)
    assert fits(running("3.4.2", Version.parse(version).beta), need) == "ALREADY_THERE"
    assert fits(running("3.4.2", beta=3), need) is None


@pytest.mark.rule("rest-120", "rest-145")
@each_row(("version", "beta"), [("3.4.3", 0), ("3.5.0", 9), ("3.10.0", 0), ("10.0.0", 0)])
def test_a_downgrade_is_for_who_allows_it(version: str, beta: int) -> None:
    assert fits(running(version, beta), NEED) == "DOWNGRADE"
    assert fits(running(version, beta), NEED._replace(allow_downgrade=True)) is None


@pytest.mark.rule("rest-145")
def test_from_a_release_to_its_beta_is_a_downgrade() -> None:
    need = NEED._replace(version=Version(3, 4, 2, 7))
    assert fits(running("3.4.2"), need) == "DOWNGRADE"
    assert fits(running("3.4.2", beta=8), need) == "DOWNGRADE"
    assert fits(running("3.4.2", beta=6), need) is None


@pytest.mark.rule("rest-119")
@each_row(
    ("version", "beta", "fitting"),
    [("3.0.0", 0, True), ("3.1.0", 0, True), ("3.0.0", 5, False), ("2.9.9", 0, False), ("0.0.0", 0, False)],
)
def test_a_version_below_the_least_is_too_old_and_so_is_one_that_nobody_knows(
    version: str, beta: int, *, fitting: bool
) -> None:
    need = NEED._replace(min_version=Version(3, 0, 0))
    assert fits(running(version, beta), need) == (None if fitting else "TOO_OLD")


def test_a_device_whose_version_nobody_knows_is_updated() -> None:
    assert fits(running("0.0.0"), NEED) is None
    assert fits(running("0.0.0"), NEED._replace(version=Version(0, 0, 0))) is None


@pytest.mark.rule("rest-119")
def test_a_way_that_a_model_does_not_know_does_not_fit() -> None:
    clip = DeviceFacts(0x000F, "1.0.0", "1.0.0", 0)
    need = NEED._replace(model=0x000F)
    assert fits(clip, need) is None
    assert fits(clip, need._replace(method=UpdateMethod.NORDIC_DFU)) is None
    assert find_exclusion(clip, need._replace(method=UpdateMethod.BROADCAST)) == Exclusion(
        ExclusionCode.WRONG_METHOD, "model 000F cannot be updated by broadcast"
    )
    unknown = NEED._replace(model=0x7FFF, method=UpdateMethod.BROADCAST)
    assert fits(DeviceFacts(0x7FFF, "1.0.0", "1.0.0", 0), unknown) is None


def test_the_first_reason_is_told() -> None:
    need = FirmwareRequirement(
        0x000F, Version(1, 0, 0), frozenset({"9.0.0"}), Version(2, 0, 0), method=UpdateMethod.BROADCAST
    )
    device = DeviceFacts(MODEL, "1.0.0", "1.0.0", 0)
    for change, need_, code in (
        (device, need, "WRONG_MODEL"),
        (device._replace(model=0x000F), need, "WRONG_HARDWARE"),
        (device._replace(model=0x000F, hardware="9.0.0"), need, "ALREADY_THERE"),
        (device._replace(model=0x000F, hardware="9.0.0", firmware="1.1.0"), need, "DOWNGRADE"),
        (
            device._replace(model=0x000F, hardware="9.0.0", firmware="1.1.0"),
            need._replace(allow_downgrade=True),
            "TOO_OLD",
        ),
        (device._replace(model=0x000F, hardware="9.0.0", firmware="0.9.0"), need, "TOO_OLD"),
        (
            device._replace(model=0x000F, hardware="9.0.0", firmware="0.9.0"),
            need._replace(min_version=None),
            "WRONG_METHOD",
        ),
    ):
        assert fits(change, need_) == code


@pytest.mark.rule("firmware-32")
@each_row(
    ("model", "method", "expected"),
    [
        (0x0018, None, UpdateMethod.DOWNLOAD),
        (0x000F, None, UpdateMethod.NORDIC_DFU),
        (0x0018, UpdateMethod.BROADCAST, UpdateMethod.BROADCAST),
        (0x7FFF, None, UpdateMethod.DOWNLOAD),
    ],
)
def test_the_way_of_updating_is_the_jobs_or_the_models(
    model: int, method: UpdateMethod | None, expected: UpdateMethod
) -> None:
    assert select_method(NEED._replace(model=model, method=method)) is expected
