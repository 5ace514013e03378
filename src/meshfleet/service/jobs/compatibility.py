"""Checks whether a firmware fits a device: when a job is created, and again before each update starts."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.ids import Version, format_model_number
from meshfleet.protocol.products import get_default_update_method, get_update_methods

if TYPE_CHECKING:
    from meshfleet.protocol.products import UpdateMethod
    from meshfleet.rest.job_requests import NewJob

_NO_VERSION: Final = "0.0.0"
"""Version in the registry of a device that has not reported its version (rest-48)."""

_NO_MODEL: Final = 0


class ExclusionCode(StrEnum):
    """Reason why a device is excluded from a job. The reasons are checked in the order of this list."""

    WRONG_MODEL = "WRONG_MODEL"
    WRONG_HARDWARE = "WRONG_HARDWARE"
    WRONG_TYPE = "WRONG_TYPE"
    ALREADY_THERE = "ALREADY_THERE"
    DOWNGRADE = "DOWNGRADE"
    TOO_OLD = "TOO_OLD"
    WRONG_METHOD = "WRONG_METHOD"
    EARLIER_JOB = "EARLIER_JOB"
    """An older job that has not finished with the device rejects newer jobs (rest-129)."""


class Exclusion(NamedTuple):
    """Reason why a device is excluded from a job, as a code and as a sentence for users."""

    code: ExclusionCode
    reason: str


class DeviceFacts(NamedTuple):
    """Properties of a device in the registry that decide whether a firmware fits the device."""

    model: int
    hardware: str
    firmware: str
    beta: int
    is_gateway: bool = False
    """Whether the device is a claimed gateway."""


class FirmwareRequirement(NamedTuple):
    """Requirements of a firmware and its job that a device must meet to be updated."""

    model: int
    version: Version
    hardware: frozenset[str] = frozenset()
    """Supported hardware versions such as `1.2.0`; an empty set means any version."""
    min_version: Version | None = None
    allow_downgrade: bool = False
    method: UpdateMethod | None = None
    type: FirmwareType = FirmwareType.NORDIC_PACKAGE


def build_requirement(  # noqa: PLR0913, PLR0917 # the columns of a row
    body: NewJob, model: int, version: str, hardware: str, min_version: str | None, firmware_type: int
) -> FirmwareRequirement:
    """Build the requirement of a job from the request body and from columns of the table `firmware`."""
    return FirmwareRequirement(
        model=model,
        version=Version.parse(version),
        hardware=frozenset(msgspec.json.decode(hardware, type=list[str])),
        min_version=None if min_version is None else Version.parse(min_version),
        allow_downgrade=body.allow_downgrade,
        method=body.method,
        type=FirmwareType(firmware_type),
    )


def find_exclusion(device: DeviceFacts, requirement: FirmwareRequirement) -> Exclusion | None:
    """Return why a device must not be updated; None if it meets the requirement (rest-119, rest-120)."""
    return (
        _check_product(device, requirement)
        or _check_version(parse_running_version(device), requirement)
        or _check_method(requirement)
    )


def parse_running_version(device: DeviceFacts) -> Version | None:
    """Return the firmware version of a device including the beta number (rest-145); None if unknown."""
    if device.firmware == _NO_VERSION and not device.beta:
        return None
    major, minor, patch = map(int, device.firmware.split("."))
    return Version(major, minor, patch, device.beta)


def select_method(requirement: FirmwareRequirement) -> UpdateMethod:
    """Return the update method that the job sets, or the default method of the model (firmware-32)."""
    return requirement.method or get_default_update_method(format_model_number(requirement.model))


def _check_product(device: DeviceFacts, requirement: FirmwareRequirement) -> Exclusion | None:
    """Return why the model, the hardware version or the kind of a device does not fit; None if all fit."""
    required_model = format_model_number(requirement.model)
    if device.model == _NO_MODEL != requirement.model:
        return Exclusion(
            ExclusionCode.WRONG_MODEL, f"its model is unknown; the firmware is for {required_model}"
        )
    if device.model != requirement.model:
        model = format_model_number(device.model)
        return Exclusion(
            ExclusionCode.WRONG_MODEL, f"its model is {model}; the firmware is for {required_model}"
        )
    if requirement.hardware and device.hardware not in requirement.hardware:
        hardware = "unknown" if device.hardware == _NO_VERSION else device.hardware
        supported = ", ".join(sorted(requirement.hardware))
        return Exclusion(
            ExclusionCode.WRONG_HARDWARE, f"its hardware is {hardware}; the firmware is for {supported}"
        )
    # For the devices around it, a gateway requests type 1 and would find no image.
    if requirement.type is FirmwareType.RAUC_BUNDLE and not device.is_gateway:
        return Exclusion(
            ExclusionCode.WRONG_TYPE, "it is not a claimed gateway; RAUC bundles (type 2) are for gateways"
        )
    return None


def _check_version(running: Version | None, requirement: FirmwareRequirement) -> Exclusion | None:
    """Return why a device with this firmware version must not be updated; None if it may be."""
    if running == requirement.version:
        reason = f"it reports that it already runs {running}; its version is read before it is skipped"
        return Exclusion(ExclusionCode.ALREADY_THERE, reason)
    if running is not None and running > requirement.version and not requirement.allow_downgrade:
        return Exclusion(
            ExclusionCode.DOWNGRADE, f"it runs {running}, which is newer than {requirement.version}"
        )
    if requirement.min_version is not None and (running is None or running < requirement.min_version):
        fact = "its version is unknown" if running is None else f"it runs {running}"
        return Exclusion(
            ExclusionCode.TOO_OLD, f"{fact}; the firmware requires {requirement.min_version} or newer"
        )
    return None


def _check_method(requirement: FirmwareRequirement) -> Exclusion | None:
    """Return why the model of the firmware cannot be updated by the required method; None if it can."""
    model = format_model_number(requirement.model)
    if requirement.method is None or requirement.method in get_update_methods(model):
        return None
    return Exclusion(ExclusionCode.WRONG_METHOD, f"model {model} cannot be updated by {requirement.method}")
