"""Update drivers: build requests and parse responses of the methods download, broadcast and Nordic DFU.

Numbers such as 8120 are property identifiers of the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.codes import Operation, UpdateState
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, Version, mac_from_int, to_dfu_mac
from meshfleet.protocol.products import UpdateMethod, is_nrf51
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates.model import (
    UpdateRequest,
    UpdateStep,
    build_device_request,
    build_gateway_request,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Mac
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateSpec


ABORT_ACTION: Final = 0
"""Value of properties 8122 and 8126 that aborts an update (firmware-7)."""
APPLY_ACTION: Final = 1
"""Value of properties 8122 and 8126 that starts a staged image (firmware-7)."""

APPLY_AT_ONCE: Final = 0
"""Start type in properties 8121 and 8124: the device starts a complete image at once (firmware-3)."""
STAGE_ONLY: Final = 1
"""Start type in properties 8121 and 8124: the device keeps the image until a command (firmware-3)."""

_STATES_BY_NAME: Final = {state.name.lower(): state for state in UpdateState}

VERSION_IDENTIFIER: Final = Identifier("8001")

MAX_BROADCAST_DEVICES: Final = 200
"""Maximum number of devices of one broadcast. Property 8124 can list at most 255 devices."""

_DFU_MODE: Final = 1
"""Value of property 8111 that means DFU mode."""

_BROADCAST_STATES: Final = frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING})
"""Execution states while a broadcast runs. Afterwards the progress is read from each device."""


class ProgressReport(NamedTuple):
    """Progress of an update that a device or gateway reports."""

    state: UpdateState
    percent: int
    error: int
    is_ours: bool
    """Whether the report is about the expected image and, for Nordic DFU, the expected device."""


def build_image_fields(spec: UpdateSpec) -> dict[str, Any]:
    """Return the fields that identify the firmware image in requests and reports (firmware-1)."""
    return {"modelNumber": int(spec.model, 16), "version": str(spec.version)}


def find_start_type(spec: UpdateSpec) -> int:
    """Return the start type of a job: whether devices start the image at once or only stage the image."""
    return STAGE_ONLY if spec.stage and not spec.is_applied else APPLY_AT_ONCE


def parse_update_state(value: Any, spec: UpdateSpec) -> ProgressReport | None:
    """Parse the value of property 8120, 8125 or 8130: the progress of an update (firmware-4).

    Return None if the value is malformed.
    """
    if not isinstance(value, dict):
        return None
    state = _STATES_BY_NAME.get(str(value.get("state")))
    percent, error = value.get("percent"), value.get("error")
    if state is None or type(percent) is not int or type(error) is not int:
        return None
    is_ours = all(value.get(name) == each for name, each in build_image_fields(spec).items())
    return ProgressReport(state, min(max(percent, 0), 100), error, is_ours)


def build_version_query(step: UpdateStep) -> UpdateRequest:
    """Build the request that reads the firmware version of a device."""
    return build_device_request(step, Operation.READ, VERSION_IDENTIFIER)


def parse_version(value: Any) -> Version | None:
    """Decode the firmware version in the response to a version query; None if the value is malformed."""
    try:
        return Version.parse(BUILTIN_CATALOGUE.decode(VERSION_IDENTIFIER, bytes.fromhex(value)).value)
    except (MalformedInput, TypeError, ValueError):
        return None


def build_mode_switch(spec: UpdateSpec, execution: ExecutionRecord) -> UpdateRequest:
    """Build the command that switches a device to DFU mode.

    The command goes to the device itself, or for an nRF51 device to its gateway.
    """
    if is_nrf51(spec.model):
        value = {"mac": mac_from_int(execution.device), "mode": _DFU_MODE}
        return build_gateway_request(
            UpdateStep.ENTER_DFU, Operation.WRITE_DECODED, "legacy-device-mode-switch", value
        )
    return build_device_request(UpdateStep.ENTER_DFU, Operation.WRITE_DECODED, "device-mode", "dfu")


def build_device_control(step: UpdateStep, action: int) -> UpdateRequest:
    """Build the command that applies or aborts the update of one device, also within a broadcast."""
    return build_device_request(step, Operation.WRITE_DECODED, "firmware-update-control", {"action": action})


def _find_advertised_mac(spec: UpdateSpec, execution: ExecutionRecord) -> Mac:
    """Return the MAC that a device advertises in DFU mode (firmware-14)."""
    mac = mac_from_int(execution.device)
    return mac if is_nrf51(spec.model) else to_dfu_mac(mac)


class UpdateDriver(NamedTuple):
    """Builds the requests and parses the responses of one update method. Sends nothing itself."""

    method: UpdateMethod
    start: str
    """Name of the property that is written to start the transfer."""
    state: str
    """Name of the property that contains the progress of the transfer."""
    control: str | None
    """Name of the property that is written to apply or abort the update; None if neither is possible."""

    def build_start_command(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Build the command that starts the transfer to a device or, in a broadcast, to the whole batch."""
        value = build_image_fields(context.spec)
        if self.method is UpdateMethod.NORDIC_DFU:
            value = {"mac": _find_advertised_mac(context.spec, execution), **value}
        else:
            value["type"] = find_start_type(context.spec)
        if self.method is UpdateMethod.BROADCAST:
            value["targets"] = [mac_from_int(each) for each in context.batch or (execution.device,)]
        return self._build_request(UpdateStep.START, Operation.WRITE_DECODED, self.start, value)

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:
        """Build the request that reads the progress, after a broadcast from the device, not the gateway."""
        if self.method is UpdateMethod.BROADCAST and (
            execution.step is UpdateStep.DEVICE_STATE or execution.state not in _BROADCAST_STATES
        ):
            return build_device_request(
                UpdateStep.DEVICE_STATE, Operation.READ_DECODED, "firmware-update-state"
            )
        return self._build_request(UpdateStep.STATE, Operation.READ_DECODED, self.state)

    def build_apply_command(self) -> UpdateRequest | None:
        """Build the command that starts the staged image; None if devices start the image by themselves."""
        return self._build_control(UpdateStep.APPLY, APPLY_ACTION)

    def build_abort_command(self) -> UpdateRequest | None:
        """Build the command that aborts an update; None if the method has no abort (firmware-27)."""
        return self._build_control(UpdateStep.ABORT, ABORT_ACTION)

    def parse_progress(
        self, value: Any, spec: UpdateSpec, execution: ExecutionRecord
    ) -> ProgressReport | None:
        """Parse the value in the response to a state query; return None if the value is malformed.

        A gateway may report the Nordic DFU of another device; `is_ours` is False in this case.
        """
        report = parse_update_state(value, spec)
        if report is None or self.method is not UpdateMethod.NORDIC_DFU:
            return report
        is_same_device = value.get("mac") == _find_advertised_mac(spec, execution)
        return report._replace(is_ours=report.is_ours and is_same_device)

    def _build_control(self, step: UpdateStep, action: int) -> UpdateRequest | None:
        """Build the command that applies or aborts an update; None if the method has no such command."""
        if self.control is None:
            return None
        return self._build_request(step, Operation.WRITE_DECODED, self.control, {"action": action})

    def _build_request(
        self, step: UpdateStep, operation: Operation, identifier: str, value: Any = None
    ) -> UpdateRequest:
        """Build a request to the device (method download) or to its gateway (other methods)."""
        targets_gateway = self.method is not UpdateMethod.DOWNLOAD
        return UpdateRequest(step, targets_gateway, operation, identifier, value)


# Every update method uses only MQTT requests and reports (firmware-31).

DRIVERS: Final[Mapping[UpdateMethod, UpdateDriver]] = {
    driver.method: driver
    for driver in (
        # The device receives the image through the mesh and keeps working meanwhile (firmware-22).
        UpdateDriver(
            UpdateMethod.DOWNLOAD,
            start="start-firmware-update",  # 8121
            state="firmware-update-state",  # 8120
            control="firmware-update-control",  # 8122
        ),
        # The gateway sends one image to many connected devices at once (firmware-24).
        UpdateDriver(
            UpdateMethod.BROADCAST,
            start="start-firmware-broadcast",  # 8124
            state="firmware-broadcast-state",  # 8125
            control="firmware-broadcast-control",  # 8126
        ),
        # The gateway sends the image to a device in DFU mode, whose bootloader starts it (firmware-26).
        UpdateDriver(
            UpdateMethod.NORDIC_DFU,
            start="start-nordic-dfu",  # 8131
            state="nordic-dfu-state",  # 8130
            control=None,
        ),
    )
}
