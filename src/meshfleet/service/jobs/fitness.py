"""May a device take a firmware? Asked when a job is made, and again before each of its updates begins."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.wire.ids import Version, model_number
from meshfleet.wire.products import usual_way, ways_of

if TYPE_CHECKING:
    from meshfleet.wire.products import Way

_NO_VERSION: Final = "0.0.0"
"""As the registry writes what a device never told (rest-48)."""

_NO_MODEL: Final = 0


class MisfitCode(StrEnum):
    """Why a device is left out, in the order in which it is looked at."""

    WRONG_MODEL = "WRONG_MODEL"
    WRONG_HARDWARE = "WRONG_HARDWARE"
    ALREADY_THERE = "ALREADY_THERE"
    DOWNGRADE = "DOWNGRADE"
    TOO_OLD = "TOO_OLD"
    WRONG_METHOD = "WRONG_METHOD"
    EARLIER_JOB = "EARLIER_JOB"
    """Another job is open for it that lets no newer one be (rest-129)."""


class Misfit(NamedTuple):
    """Why a device is left out, for programs and for people."""

    code: MisfitCode
    reason: str


class Facts(NamedTuple):
    """What is known of a device, as it stands in the registry."""

    model: int
    hardware: str
    firmware: str
    beta: int


class Need(NamedTuple):
    """What a firmware asks of a device, and a job besides."""

    model: int
    version: Version
    hardware: frozenset[str] = frozenset()
    """Versions with three parts; none: any."""
    min_version: Version | None = None
    allow_downgrade: bool = False
    method: Way | None = None


def misfit(device: Facts, need: Need) -> Misfit | None:
    """Why a device cannot take it; None: it can (rest-119, rest-120)."""
    return _wrong_thing(device, need) or _wrong_version(version_of(device), need) or _wrong_method(need)


def version_of(device: Facts) -> Version | None:
    """The version that a device runs, its beta included (rest-145); None: nobody knows."""
    if device.firmware == _NO_VERSION and not device.beta:
        return None
    major, minor, patch = map(int, device.firmware.split("."))
    return Version(major, minor, patch, device.beta)


def method_of(need: Need) -> Way:
    """How devices are updated: as the job says, or as is usual for the model (firmware-32)."""
    return need.method or usual_way(model_number(need.model))


def _wrong_thing(device: Facts, need: Need) -> Misfit | None:
    wanted = model_number(need.model)
    if device.model == _NO_MODEL != need.model:
        return Misfit(MisfitCode.WRONG_MODEL, f"its model is not known, and the firmware is for {wanted}")
    if device.model != need.model:
        model = model_number(device.model)
        return Misfit(MisfitCode.WRONG_MODEL, f"its model is {model}, and the firmware is for {wanted}")
    if need.hardware and device.hardware not in need.hardware:
        told = "not known" if device.hardware == _NO_VERSION else device.hardware
        fitting = ", ".join(sorted(need.hardware))
        return Misfit(MisfitCode.WRONG_HARDWARE, f"its hardware is {told}, and the firmware is for {fitting}")
    return None


def _wrong_version(runs: Version | None, need: Need) -> Misfit | None:
    if runs == need.version:
        reason = f"it reports that it runs {runs} already, and is asked before it is skipped"
        return Misfit(MisfitCode.ALREADY_THERE, reason)
    if runs is not None and runs > need.version and not need.allow_downgrade:
        return Misfit(MisfitCode.DOWNGRADE, f"it runs {runs}, which is newer than {need.version}")
    if need.min_version is not None and (runs is None or runs < need.min_version):
        told = "its version is not known" if runs is None else f"it runs {runs}"
        return Misfit(MisfitCode.TOO_OLD, f"{told}, and the firmware needs {need.min_version} or newer")
    return None


def _wrong_method(need: Need) -> Misfit | None:
    model = model_number(need.model)
    if need.method is None or need.method in ways_of(model):
        return None
    return Misfit(MisfitCode.WRONG_METHOD, f"a {model} cannot be updated by {need.method}")
