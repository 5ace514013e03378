"""May a device take a firmware? Asked when a job is made, and again before each of its updates begins."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.ids import Version, format_model_number
from meshfleet.protocol.products import get_default_update_method, get_update_methods

if TYPE_CHECKING:
    from meshfleet.protocol.products import UpdateMethod

_NO_VERSION: Final = "0.0.0"
"""As the registry writes what a device never told (rest-48)."""

_NO_MODEL: Final = 0


class ExclusionCode(StrEnum):
    """Why a device is left out, in the order in which it is looked at."""

    WRONG_MODEL = "WRONG_MODEL"
    WRONG_HARDWARE = "WRONG_HARDWARE"
    ALREADY_THERE = "ALREADY_THERE"
    DOWNGRADE = "DOWNGRADE"
    TOO_OLD = "TOO_OLD"
    WRONG_METHOD = "WRONG_METHOD"
    EARLIER_JOB = "EARLIER_JOB"
    """Another job is open for it that lets no newer one be (rest-129)."""


class Exclusion(NamedTuple):
    """Why a device is left out, for programs and for people."""

    code: ExclusionCode
    reason: str


class DeviceFacts(NamedTuple):
    """What is known of a device, as it stands in the registry."""

    model: int
    hardware: str
    firmware: str
    beta: int


class FirmwareRequirement(NamedTuple):
    """What a firmware asks of a device, and a job besides."""

    model: int
    version: Version
    hardware: frozenset[str] = frozenset()
    """Versions with three parts; none: any."""
    min_version: Version | None = None
    allow_downgrade: bool = False
    method: UpdateMethod | None = None


def find_exclusion(device: DeviceFacts, requirement: FirmwareRequirement) -> Exclusion | None:
    """Why a device cannot take it; None: it can (rest-119, rest-120)."""
    return (
        _check_product(device, requirement)
        or _wrong_version(parse_running_version(device), requirement)
        or _wrong_method(requirement)
    )


def parse_running_version(device: DeviceFacts) -> Version | None:
    """The version that a device runs, its beta included (rest-145); None: nobody knows."""
    if device.firmware == _NO_VERSION and not device.beta:
        return None
    major, minor, patch = map(int, device.firmware.split("."))
    return Version(major, minor, patch, device.beta)


def select_method(requirement: FirmwareRequirement) -> UpdateMethod:
    """How devices are updated: as the job says, or as is usual for the model (firmware-32)."""
    return requirement.method or get_default_update_method(format_model_number(requirement.model))


def _check_product(device: DeviceFacts, requirement: FirmwareRequirement) -> Exclusion | None:
    wanted = format_model_number(requirement.model)
    if device.model == _NO_MODEL != requirement.model:
        return Exclusion(
            ExclusionCode.WRONG_MODEL, f"its model is not known, and the firmware is for {wanted}"
        )
    if device.model != requirement.model:
        model = format_model_number(device.model)
        return Exclusion(ExclusionCode.WRONG_MODEL, f"its model is {model}, and the firmware is for {wanted}")
    if requirement.hardware and device.hardware not in requirement.hardware:
        told = "not known" if device.hardware == _NO_VERSION else device.hardware
        fitting = ", ".join(sorted(requirement.hardware))
        return Exclusion(
            ExclusionCode.WRONG_HARDWARE, f"its hardware is {told}, and the firmware is for {fitting}"
        )
    return None


def _wrong_version(runs: Version | None, requirement: FirmwareRequirement) -> Exclusion | None:
    if runs == requirement.version:
        reason = f"it reports that it runs {runs} already, and is asked before it is skipped"
        return Exclusion(ExclusionCode.ALREADY_THERE, reason)
    if runs is not None and runs > requirement.version and not requirement.allow_downgrade:
        return Exclusion(
            ExclusionCode.DOWNGRADE, f"it runs {runs}, which is newer than {requirement.version}"
        )
    if requirement.min_version is not None and (runs is None or runs < requirement.min_version):
        told = "its version is not known" if runs is None else f"it runs {runs}"
        return Exclusion(
            ExclusionCode.TOO_OLD, f"{told}, and the firmware needs {requirement.min_version} or newer"
        )
    return None


def _wrong_method(requirement: FirmwareRequirement) -> Exclusion | None:
    model = format_model_number(requirement.model)
    if requirement.method is None or requirement.method in get_update_methods(model):
        return None
    return Exclusion(ExclusionCode.WRONG_METHOD, f"a {model} cannot be updated by {requirement.method}")
