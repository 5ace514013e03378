"""Update drivers: build the requests and parse the responses of download, broadcast and Nordic DFU.

Numbers such as 8120 are property identifiers of the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.codes import Operation, UpdateState
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, Version, mac_from_int, to_dfu_mac
from meshfleet.protocol.products import UpdateMethod, is_nrf51
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates.model import UpdateStep, build_device_request, build_gateway_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Mac
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateRequest, UpdateSpec


ABORT_ACTION, APPLY_ACTION = 0, 1
"""Actions that are written to properties 8122 and 8126 (firmware-7)."""

APPLY_AT_ONCE, STAGE_ONLY = 0, 1
"""Start types that are written to properties 8121 and 8124 (firmware-3)."""

_STATES_BY_NAME: Final = {state.name.lower(): state for state in UpdateState}

VERSION_IDENTIFIER: Final = Identifier("8001")


class ProgressReport(NamedTuple):
    """Progress of an update as a device or gateway reports it."""

    state: UpdateState
    percent: int
    error: int
    is_ours: bool
    """Whether the report is about this update: the same image and, for Nordic DFU, the same device."""


class UpdateDriver(Protocol):
    """Protocol of an update method: builds requests and parses responses, but sends nothing."""

    needs_dfu: bool
    """Whether the device must be in DFU mode before the transfer starts."""

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Build the command that starts the transfer."""

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:
        """Build the query for the progress of the transfer."""

    def build_apply(self) -> UpdateRequest | None:
        """Build the command to start the staged image; None if devices start it by themselves."""

    def build_abort(self) -> UpdateRequest | None:
        """Build the command to abort the update; None if it cannot be aborted."""

    def parse_progress(
        self, value: Any, spec: UpdateSpec, execution: ExecutionRecord
    ) -> ProgressReport | None:
        """Parse the response to the state query; None if it cannot be decoded."""


def build_image_fields(spec: UpdateSpec) -> dict[str, Any]:
    """Return the fields that identify the firmware image in requests and reports (firmware-1)."""
    return {"modelNumber": int(spec.model, 16), "version": str(spec.version)}


def find_start_type(spec: UpdateSpec) -> int:
    """Return the start type, which says whether the device starts the image at once or only stages it."""
    return STAGE_ONLY if spec.stage and not spec.is_applied else APPLY_AT_ONCE


def parse_state(value: Any, spec: UpdateSpec) -> ProgressReport | None:
    """Parse the fields that 8120, 8125 and 8130 have in common (firmware-4).

    Return None if they cannot be decoded.
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
    """Build the query for the version that a device runs."""
    return build_device_request(step, Operation.READ, VERSION_IDENTIFIER)


def parse_version(value: Any) -> Version | None:
    """Parse the value of a version query; None if it cannot be decoded."""
    try:
        return Version.parse(BUILTIN_CATALOGUE.decode(VERSION_IDENTIFIER, bytes.fromhex(value)).value)
    except (MalformedInput, TypeError, ValueError):
        return None


# Broadcast: the gateway sends one image to many connected devices at once (firmware-24).

MAX_BROADCAST_DEVICES: Final = 200
"""Maximum devices of one broadcast. Property 8124 can list at most 255."""

_BROADCAST_STATES: Final = frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING})


class BroadcastDriver:
    """Driver of the method broadcast.

    Writing 8124 of the gateway starts the broadcast, and writing 8126 applies or aborts it. The progress is
    read from 8125 of the gateway, or from 8120 of the device once the broadcast is over.
    """

    needs_dfu = False

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Build the command that starts the broadcast for the whole batch."""
        targets = [mac_from_int(each) for each in context.batch or (execution.device,)]
        value = {
            **build_image_fields(context.spec),
            "type": find_start_type(context.spec),
            "targets": targets,
        }
        return build_gateway_request(
            UpdateStep.START, Operation.WRITE_DECODED, "start-firmware-broadcast", value
        )

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:
        """Build the query for the progress: to the gateway, or to the device once the broadcast is over."""
        if execution.step is UpdateStep.DEVICE_STATE or execution.state not in _BROADCAST_STATES:
            return build_device_request(
                UpdateStep.DEVICE_STATE, Operation.READ_DECODED, "firmware-update-state"
            )
        return build_gateway_request(UpdateStep.STATE, Operation.READ_DECODED, "firmware-broadcast-state")

    def build_apply(self) -> UpdateRequest:
        """Build the command that lets all devices start the staged image."""
        return _build_broadcast_control(UpdateStep.APPLY, APPLY_ACTION)

    def build_abort(self) -> UpdateRequest:
        """Build the command that aborts the broadcast for all devices."""
        return _build_broadcast_control(UpdateStep.ABORT, ABORT_ACTION)

    def parse_progress(
        self,
        value: Any,
        spec: UpdateSpec,
        execution: ExecutionRecord,  # noqa: ARG002 # other drivers need it
    ) -> ProgressReport | None:
        """Parse the progress from 8125 or 8120: both start with the same fields."""
        return parse_state(value, spec)


def _build_broadcast_control(step: UpdateStep, action: int) -> UpdateRequest:
    return build_gateway_request(
        step, Operation.WRITE_DECODED, "firmware-broadcast-control", {"action": action}
    )


# Download: the device receives the image through the mesh and keeps working meanwhile (firmware-22).


class DownloadDriver:
    """Driver of the method download.

    Writing 8121 of the device starts the download, 8120 contains the progress, and writing 8122 applies or
    aborts it.
    """

    needs_dfu = False

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:  # noqa: ARG002 # as all drivers
        """Build the command that starts the download."""
        value = {**build_image_fields(context.spec), "type": find_start_type(context.spec)}
        return build_device_request(UpdateStep.START, Operation.WRITE_DECODED, "start-firmware-update", value)

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:  # noqa: ARG002 # as all drivers
        """Build the query for the progress to the device."""
        return build_device_request(UpdateStep.STATE, Operation.READ_DECODED, "firmware-update-state")

    def build_apply(self) -> UpdateRequest:
        """Build the command to start the staged image."""
        return _build_update_control(UpdateStep.APPLY, APPLY_ACTION)

    def build_abort(self) -> UpdateRequest:
        """Build the command that aborts the download."""
        return _build_update_control(UpdateStep.ABORT, ABORT_ACTION)

    def parse_progress(
        self,
        value: Any,
        spec: UpdateSpec,
        execution: ExecutionRecord,  # noqa: ARG002 # other drivers need it
    ) -> ProgressReport | None:
        """Parse the progress from 8120."""
        return parse_state(value, spec)


def _build_update_control(step: UpdateStep, action: int) -> UpdateRequest:
    return build_device_request(step, Operation.WRITE_DECODED, "firmware-update-control", {"action": action})


# Nordic DFU: the gateway sends the image to a device in DFU mode (firmware-26).

_DFU_MODE: Final = 1
"""Value of property 8111 that means DFU mode."""


class NordicDfuDriver:
    """Driver of the method Nordic DFU.

    Writing 8110 or 8111 switches the device to DFU mode. Writing 8131 of the gateway starts the transfer, and
    8130 of the gateway contains the progress.
    """

    needs_dfu = True

    def build_mode_switch(self, spec: UpdateSpec, execution: ExecutionRecord) -> UpdateRequest:
        """Build the command that switches the device to DFU mode.

        It goes to the device itself, or for an nRF51 device to its gateway.
        """
        if is_nrf51(spec.model):
            value = {"mac": mac_from_int(execution.device), "mode": _DFU_MODE}
            return build_gateway_request(
                UpdateStep.ENTER_DFU, Operation.WRITE_DECODED, "legacy-device-mode-switch", value
            )
        return build_device_request(UpdateStep.ENTER_DFU, Operation.WRITE_DECODED, "device-mode", "dfu")

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Build the command that starts the DFU."""
        value = {"mac": _find_advertised_mac(context.spec, execution), **build_image_fields(context.spec)}
        return build_gateway_request(UpdateStep.START, Operation.WRITE_DECODED, "start-nordic-dfu", value)

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:  # noqa: ARG002 # as all drivers
        """Build the query for the progress to the gateway."""
        return build_gateway_request(UpdateStep.STATE, Operation.READ_DECODED, "nordic-dfu-state")

    def build_apply(self) -> None:
        """Return None: the bootloader starts the image by itself."""

    def build_abort(self) -> None:
        """Return None: a Nordic DFU cannot be aborted (firmware-27)."""

    def parse_progress(
        self, value: Any, spec: UpdateSpec, execution: ExecutionRecord
    ) -> ProgressReport | None:
        """Parse the progress from 8130. It may be that of another device; `is_ours` is False then."""
        report = parse_state(value, spec)
        if report is None:
            return None
        return report._replace(
            is_ours=report.is_ours and value.get("mac") == _find_advertised_mac(spec, execution)
        )


def _find_advertised_mac(spec: UpdateSpec, execution: ExecutionRecord) -> Mac:
    """Return the address that the device advertises in DFU mode (firmware-14)."""
    mac = mac_from_int(execution.device)
    return mac if is_nrf51(spec.model) else to_dfu_mac(mac)


# Every update method uses only MQTT requests and reports (firmware-31).

DRIVERS: Final[Mapping[UpdateMethod, UpdateDriver]] = {
    UpdateMethod.DOWNLOAD: DownloadDriver(),
    UpdateMethod.BROADCAST: BroadcastDriver(),
    UpdateMethod.NORDIC_DFU: NordicDfuDriver(),
}

__all__ = ["DRIVERS"]
