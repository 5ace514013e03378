"""What a driver is, and what all of them have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from meshfleet.errors.protocol import WireError
from meshfleet.protocol.codes import Operation, UpdateState
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, Version, mac_from_int, to_dfu_mac
from meshfleet.protocol.products import UpdateMethod, is_nrf51
from meshfleet.rest import ExecutionState
from meshfleet.service.jobs.updates.model import UpdateStep, build_device_request, build_gateway_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Mac
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateRequest, UpdateSpec


ABORT_ACTION, APPLY_ACTION = 0, 1
"""What 8122 and 8126 can say (firmware-7)."""

APPLY_AT_ONCE, STAGE_ONLY = 0, 1
"""Types of 8121 and 8124 (firmware-3)."""

_STATES_BY_NAME: Final = {state.name.lower(): state for state in UpdateState}

VERSION_IDENTIFIER: Final = Identifier("8001")


class ProgressReport(NamedTuple):
    """How far an update is."""

    state: UpdateState
    percent: int
    error: int
    is_ours: bool
    """Whether it is this image, and for this device."""


class UpdateDriver(Protocol):
    """One way of updating. It only says what to ask and reads what is answered; it sends nothing."""

    needs_dfu: bool
    """Whether the device must be in DFU mode before it begins."""

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Begin the transfer."""

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:
        """Ask how far it is."""

    def build_apply(self) -> UpdateRequest | None:
        """Let devices start what they have staged; None: they do that by themselves."""

    def build_abort(self) -> UpdateRequest | None:
        """Take it back; None: nobody can, once it has begun."""

    def parse_progress(
        self, value: Any, spec: UpdateSpec, execution: ExecutionRecord
    ) -> ProgressReport | None:
        """Read the answer to `state`; None: it cannot be read."""


def build_image_fields(spec: UpdateSpec) -> dict[str, Any]:
    """Which image, inside a value (firmware-1)."""
    return {"modelNumber": int(spec.model, 16), "version": str(spec.version)}


def find_start_type(spec: UpdateSpec) -> int:
    """Whether a device starts what it has got by itself."""
    return STAGE_ONLY if spec.stage and not spec.is_applied else APPLY_AT_ONCE


def parse_state(value: Any, spec: UpdateSpec) -> ProgressReport | None:
    """Read what 8120, 8125 and 8130 begin with (firmware-4)."""
    if not isinstance(value, dict):
        return None
    state = _STATES_BY_NAME.get(str(value.get("state")))
    percent, error = value.get("percent"), value.get("error")
    if state is None or type(percent) is not int or type(error) is not int:
        return None
    ours = all(value.get(name) == each for name, each in build_image_fields(spec).items())
    return ProgressReport(state, min(max(percent, 0), 100), error, ours)


def build_version_query(step: UpdateStep) -> UpdateRequest:
    """Ask which version a device runs."""
    return build_device_request(step, Operation.READ, VERSION_IDENTIFIER)


def parse_version(value: Any) -> Version | None:
    """Read the answer; None: it cannot be read."""
    try:
        return Version.parse(BUILTIN_CATALOGUE.decode(VERSION_IDENTIFIER, bytes.fromhex(value)).value)
    except (WireError, TypeError, ValueError):
        return None


# By broadcast: the gateway sends one image to many connected devices at once (firmware-24).

MAX_BROADCAST_DEVICES: Final = 200
"""Devices of one broadcast; the list in 8124 has room for 255."""

_BROADCAST_STATES: Final = frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING})


class BroadcastDriver:
    """8124 to the gateway, 8125 tells the progress, then 8120 of each device; 8126 applies or aborts."""

    needs_dfu = False

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Begin, for all of the batch."""
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
        """Ask the gateway, and when the image is out, the device."""
        if execution.step is UpdateStep.DEVICE_STATE or execution.state not in _BROADCAST_STATES:
            return build_device_request(
                UpdateStep.DEVICE_STATE, Operation.READ_DECODED, "firmware-update-state"
            )
        return build_gateway_request(UpdateStep.STATE, Operation.READ_DECODED, "firmware-broadcast-state")

    def build_apply(self) -> UpdateRequest:
        """Let all start what they have staged."""
        return _build_broadcast_control(UpdateStep.APPLY, APPLY_ACTION)

    def build_abort(self) -> UpdateRequest:
        """Take it back, for all."""
        return _build_broadcast_control(UpdateStep.ABORT, ABORT_ACTION)

    def parse_progress(
        self,
        value: Any,
        spec: UpdateSpec,
        execution: ExecutionRecord,  # noqa: ARG002 # other drivers need it
    ) -> ProgressReport | None:
        """Read 8125, or 8120, which begins alike."""
        return parse_state(value, spec)


def _build_broadcast_control(step: UpdateStep, action: int) -> UpdateRequest:
    return build_gateway_request(
        step, Operation.WRITE_DECODED, "firmware-broadcast-control", {"action": action}
    )


# By download: the device gets the image through the mesh, and goes on working meanwhile (firmware-22).


class DownloadDriver:
    """8121 to the device, 8120 tells the progress, 8122 applies or aborts."""

    needs_dfu = False

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:  # noqa: ARG002 # as all drivers
        """Begin."""
        value = {**build_image_fields(context.spec), "type": find_start_type(context.spec)}
        return build_device_request(UpdateStep.START, Operation.WRITE_DECODED, "start-firmware-update", value)

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:  # noqa: ARG002 # as all drivers
        """Ask the device."""
        return build_device_request(UpdateStep.STATE, Operation.READ_DECODED, "firmware-update-state")

    def build_apply(self) -> UpdateRequest:
        """Start what was staged."""
        return _build_update_control(UpdateStep.APPLY, APPLY_ACTION)

    def build_abort(self) -> UpdateRequest:
        """Take it back."""
        return _build_update_control(UpdateStep.ABORT, ABORT_ACTION)

    def parse_progress(
        self,
        value: Any,
        spec: UpdateSpec,
        execution: ExecutionRecord,  # noqa: ARG002 # other drivers need it
    ) -> ProgressReport | None:
        """Read 8120."""
        return parse_state(value, spec)


def _build_update_control(step: UpdateStep, action: int) -> UpdateRequest:
    return build_device_request(step, Operation.WRITE_DECODED, "firmware-update-control", {"action": action})


# Nordic DFU: the gateway sends the image to a device that waits for it in DFU mode (firmware-26).

_DFU_MODE: Final = 1
"""The mode as 8111 has it."""


class NordicDfuDriver:
    """8110 or 8111 sends the device into DFU mode, 8131 to the gateway begins, 8130 tells the progress."""

    needs_dfu = True

    def build_mode_switch(self, spec: UpdateSpec, execution: ExecutionRecord) -> UpdateRequest:
        """Send the device into DFU mode; an older one through its gateway."""
        if is_nrf51(spec.model):
            value = {"mac": mac_from_int(execution.device), "mode": _DFU_MODE}
            return build_gateway_request(
                UpdateStep.ENTER_DFU, Operation.WRITE_DECODED, "legacy-device-mode-switch", value
            )
        return build_device_request(UpdateStep.ENTER_DFU, Operation.WRITE_DECODED, "device-mode", "dfu")

    def build_start(self, context: UpdateContext, execution: ExecutionRecord) -> UpdateRequest:
        """Begin."""
        value = {"mac": _find_advertised_mac(context.spec, execution), **build_image_fields(context.spec)}
        return build_gateway_request(UpdateStep.START, Operation.WRITE_DECODED, "start-nordic-dfu", value)

    def build_state_query(self, execution: ExecutionRecord) -> UpdateRequest:  # noqa: ARG002 # as all drivers
        """Ask the gateway."""
        return build_gateway_request(UpdateStep.STATE, Operation.READ_DECODED, "nordic-dfu-state")

    def build_apply(self) -> None:
        """The bootloader starts what it has got."""

    def build_abort(self) -> None:
        """Nobody can (firmware-27)."""

    def parse_progress(
        self, value: Any, spec: UpdateSpec, execution: ExecutionRecord
    ) -> ProgressReport | None:
        """Read 8130, which may be about another device."""
        told = parse_state(value, spec)
        if told is None:
            return None
        return told._replace(
            is_ours=told.is_ours and value.get("mac") == _find_advertised_mac(spec, execution)
        )


def _find_advertised_mac(spec: UpdateSpec, execution: ExecutionRecord) -> Mac:
    """The address that the device has in DFU mode (firmware-14)."""
    mac = mac_from_int(execution.device)
    return mac if is_nrf51(spec.model) else to_dfu_mac(mac)


# The ways of updating, each with nothing but messaging requests and reports (firmware-31).

DRIVERS: Final[Mapping[UpdateMethod, UpdateDriver]] = {
    UpdateMethod.DOWNLOAD: DownloadDriver(),
    UpdateMethod.BROADCAST: BroadcastDriver(),
    UpdateMethod.NORDIC_DFU: NordicDfuDriver(),
}

__all__ = ["DRIVERS"]
