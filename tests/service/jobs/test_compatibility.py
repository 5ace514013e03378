from __future__ import annotations

import pytest

from meshfleet.protocol.diagnostics import FirmwareType
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
REQUIREMENT = FirmwareRequirement(MODEL, Version(3, 4, 2))


def find_code(device: DeviceFacts, requirement: FirmwareRequirement) -> str | None:
    exclusion = find_exclusion(device, requirement)
    return None if exclusion is None else exclusion.code


def device_running(version: str, beta: int = 0) -> DeviceFacts:
    return DeviceFacts(MODEL, "1.0.0", version, beta)


@pytest.mark.rule("rest-119")
def test_a_device_of_the_model_with_an_older_version_fits() -> None:
    assert find_code(device_running("3.4.1"), REQUIREMENT) is None
    assert find_code(device_running("3.4.2", beta=7), REQUIREMENT) is None


@pytest.mark.rule("rest-119")
@each_row(("model", "fact"), [(0x0011, "its model is 0011"), (0, "its model is unknown")])
def test_a_device_of_another_model_does_not_fit(model: int, fact: str) -> None:
    exclusion = find_exclusion(DeviceFacts(model, "1.0.0", "3.4.1", 0), REQUIREMENT)
    assert exclusion == Exclusion(ExclusionCode.WRONG_MODEL, f"{fact}; the firmware is for 0018")


@pytest.mark.rule("rest-119")
@each_row(
    ("hardware", "supported", "is_eligible"),
    [
        ("1.0.0", (), True),
        ("0.0.0", (), True),
        ("1.0.0", ("1.0.0", "2.0.0"), True),
        ("1.0.1", ("1.0.0", "2.0.0"), False),
        ("0.0.0", ("1.0.0",), False),
    ],
)
def test_the_hardware_must_be_supported_by_the_firmware(
    hardware: str, supported: tuple[str, ...], *, is_eligible: bool
) -> None:
    requirement = REQUIREMENT._replace(hardware=frozenset(supported))
    expected = None if is_eligible else "WRONG_HARDWARE"
    assert find_code(DeviceFacts(MODEL, hardware, "3.4.1", 0), requirement) == expected


@pytest.mark.rule("rest-119", "rest-145")
@each_row("version", ["3.4.2", "3.4.2-beta.4"])
def test_a_device_that_runs_the_version_is_already_there(version: str) -> None:
    requirement = REQUIREMENT._replace(version=Version.parse(version), allow_downgrade=True)
    assert find_code(device_running("3.4.2", Version.parse(version).beta), requirement) == "ALREADY_THERE"
    assert find_code(device_running("3.4.2", beta=3), requirement) is None


@pytest.mark.rule("rest-120", "rest-145")
@each_row(("version", "beta"), [("3.4.3", 0), ("3.5.0", 9), ("3.10.0", 0), ("10.0.0", 0)])
def test_a_downgrade_needs_permission(version: str, beta: int) -> None:
    assert find_code(device_running(version, beta), REQUIREMENT) == "DOWNGRADE"
    assert find_code(device_running(version, beta), REQUIREMENT._replace(allow_downgrade=True)) is None


@pytest.mark.rule("rest-145")
def test_from_a_release_to_its_beta_is_a_downgrade() -> None:
    requirement = REQUIREMENT._replace(version=Version(3, 4, 2, 7))
    assert find_code(device_running("3.4.2"), requirement) == "DOWNGRADE"
    assert find_code(device_running("3.4.2", beta=8), requirement) == "DOWNGRADE"
    assert find_code(device_running("3.4.2", beta=6), requirement) is None


@pytest.mark.rule("rest-119")
@each_row(
    ("version", "beta", "is_eligible"),
    [("3.0.0", 0, True), ("3.1.0", 0, True), ("3.0.0", 5, False), ("2.9.9", 0, False), ("0.0.0", 0, False)],
)
def test_a_version_below_the_minimum_and_an_unknown_version_are_too_old(
    version: str, beta: int, *, is_eligible: bool
) -> None:
    requirement = REQUIREMENT._replace(min_version=Version(3, 0, 0))
    assert find_code(device_running(version, beta), requirement) == (None if is_eligible else "TOO_OLD")


def test_a_device_with_an_unknown_version_is_updated() -> None:
    assert find_code(device_running("0.0.0"), REQUIREMENT) is None
    assert find_code(device_running("0.0.0"), REQUIREMENT._replace(version=Version(0, 0, 0))) is None


@pytest.mark.rule("rest-119")
def test_a_method_that_the_model_does_not_support_does_not_fit() -> None:
    legacy_device = DeviceFacts(0x000F, "1.0.0", "1.0.0", 0)
    requirement = REQUIREMENT._replace(model=0x000F)
    assert find_code(legacy_device, requirement) is None
    assert find_code(legacy_device, requirement._replace(method=UpdateMethod.NORDIC_DFU)) is None
    assert find_exclusion(legacy_device, requirement._replace(method=UpdateMethod.BROADCAST)) == Exclusion(
        ExclusionCode.WRONG_METHOD, "model 000F cannot be updated by broadcast"
    )
    unknown = REQUIREMENT._replace(model=0x7FFF, method=UpdateMethod.BROADCAST)
    assert find_code(DeviceFacts(0x7FFF, "1.0.0", "1.0.0", 0), unknown) is None


def test_the_first_failed_check_is_the_reason() -> None:
    requirement = FirmwareRequirement(
        0x000F, Version(1, 0, 0), frozenset({"9.0.0"}), Version(2, 0, 0), method=UpdateMethod.BROADCAST
    )
    bundle = requirement._replace(type=FirmwareType.RAUC_BUNDLE)
    device = DeviceFacts(MODEL, "1.0.0", "1.0.0", 0)
    for changed_device, changed_requirement, code in (
        (device, requirement, "WRONG_MODEL"),
        (device._replace(model=0x000F), requirement, "WRONG_HARDWARE"),
        (device._replace(model=0x000F), bundle, "WRONG_HARDWARE"),
        (device._replace(model=0x000F, hardware="9.0.0"), bundle, "WRONG_TYPE"),
        (device._replace(model=0x000F, hardware="9.0.0", is_gateway=True), bundle, "ALREADY_THERE"),
        (device._replace(model=0x000F, hardware="9.0.0"), requirement, "ALREADY_THERE"),
        (device._replace(model=0x000F, hardware="9.0.0", firmware="1.1.0"), requirement, "DOWNGRADE"),
        (
            device._replace(model=0x000F, hardware="9.0.0", firmware="1.1.0"),
            requirement._replace(allow_downgrade=True),
            "TOO_OLD",
        ),
        (device._replace(model=0x000F, hardware="9.0.0", firmware="0.9.0"), requirement, "TOO_OLD"),
        (
            device._replace(model=0x000F, hardware="9.0.0", firmware="0.9.0"),
            requirement._replace(min_version=None),
            "WRONG_METHOD",
        ),
    ):
        assert find_code(changed_device, changed_requirement) == code


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
def test_the_update_method_is_that_of_the_job_or_the_default_of_the_model(
    model: int, method: UpdateMethod | None, expected: UpdateMethod
) -> None:
    assert select_method(REQUIREMENT._replace(model=model, method=method)) is expected
