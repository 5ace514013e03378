"""Simulated devices and gateways: how they handle requests, with time as a plain number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.protocol.codes import Status, UpdateErrorCode, UpdateState
from meshfleet.protocol.ids import mac_from_int, to_dfu_mac
from meshfleet.protocol.products import is_nrf51

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac, ModelNumber
    from meshfleet.service.jobs.execution.outbox import OutboxRequest

SECOND: Final = 1000
FETCH: Final = 2 * SECOND
TRANSFER: Final = 40 * SECOND
VERIFY: Final = 3 * SECOND
RESTART: Final = 15 * SECOND
SLOW_START: Final = 50 * SECOND
IN_DFU: Final = 600 * SECOND
"""Milliseconds after which a device leaves DFU mode by itself."""


_ENDED_STATES: Final = frozenset({UpdateState.IDLE, UpdateState.DONE, UpdateState.FAILED})


class UpdateFate(StrEnum):
    """Course of a simulated update."""

    FINE = "fine"
    NO_IMAGE = "no image"
    BATTERY = "battery"
    WRONG_MODEL = "wrong model"
    LOST = "lost"
    STUCK = "stuck"
    BAD_HASH = "bad hash"
    ROLLED_BACK = "rolled back"
    WRONG_VERSION = "wrong version"
    """The device reports that it is done, but runs another version."""
    FORGETFUL = "forgetful"
    """The device is idle after the restart, without a result of the update."""
    SICK = "sick"
    """The device returns with a bad status."""
    MUTE = "mute"
    """The device returns and sends no heartbeats."""
    SLOW = "slow"
    """The device accepts the start and is idle for a while before the transfer."""


_ERRORS: Final = {
    UpdateFate.BATTERY: (0, UpdateErrorCode.BATTERY),
    UpdateFate.WRONG_MODEL: (0, UpdateErrorCode.WRONG_MODEL),
    UpdateFate.NO_IMAGE: (FETCH, UpdateErrorCode.NO_IMAGE),
    UpdateFate.LOST: (FETCH + TRANSFER // 2, UpdateErrorCode.TRANSFER_LOST),
    UpdateFate.BAD_HASH: (FETCH + TRANSFER + VERIFY, UpdateErrorCode.BAD_HASH),
}
"""Milliseconds after the start until an update fails, and its error."""


class ShownState(NamedTuple):
    """Progress of an update as 8120 reports it."""

    state: UpdateState
    percent: int
    error: int


@dataclass
class SimulatedUpdate:
    """Update of one device."""

    model: int
    version: str
    stage: bool
    started_at: int
    fate: UpdateFate
    verify: int = VERIFY
    """Milliseconds that the device needs to verify the image."""
    applied: int | None = None
    aborted: int | None = None

    @property
    def restart(self) -> int | None:
        """Time at which the device restarts; None if it does not."""
        if self.aborted is not None or self.fate in _ERRORS or self.fate is UpdateFate.STUCK:
            return None
        return self.applied if self.stage else self.started_at + FETCH + TRANSFER + self.verify

    def show(self, now: int) -> ShownState:  # noqa: PLR0911 # one return per state
        """Return the progress at a time."""
        done = self._compute_percent(now)
        if self.aborted is None and now < self.started_at:
            return ShownState(UpdateState.IDLE, 0, 0)
        if self.aborted is not None:
            return ShownState(
                UpdateState.FAILED, self._compute_percent(self.aborted), UpdateErrorCode.ABORTED
            )
        if self.fate in _ERRORS:
            after, error = _ERRORS[self.fate]
            if now >= self.started_at + after:
                return ShownState(UpdateState.FAILED, self._compute_percent(self.started_at + after), error)
        if self.restart is not None and now >= self.restart:
            return self._show_after_restart(now - self.restart)
        if now < self.started_at + FETCH:
            return ShownState(UpdateState.FETCHING, 0, 0)
        if self.fate is UpdateFate.STUCK or now < self.started_at + FETCH + TRANSFER:
            return ShownState(
                UpdateState.TRANSFERRING, min(done, 40 if self.fate is UpdateFate.STUCK else 99), 0
            )
        if now < self.started_at + FETCH + TRANSFER + self.verify:
            return ShownState(UpdateState.VERIFYING, 100, 0)
        return ShownState(UpdateState.STAGED, 100, 0)

    def _show_after_restart(self, since: int) -> ShownState:
        if since < RESTART:
            return ShownState(UpdateState.APPLYING, 100, 0)
        if self.fate is UpdateFate.ROLLED_BACK:
            return ShownState(UpdateState.FAILED, 100, UpdateErrorCode.ROLLED_BACK)
        if self.fate is UpdateFate.FORGETFUL:
            return ShownState(UpdateState.IDLE, 0, 0)
        return ShownState(UpdateState.DONE, 100, 0)

    def _compute_percent(self, now: int) -> int:
        return min(max(100 * (now - self.started_at - FETCH) // TRANSFER, 0), 100)

    def is_over(self, now: int) -> bool:
        """Return whether the update has ended, so that the device would start another one."""
        return self.show(now).state in _ENDED_STATES

    def value(self, now: int) -> dict[str, Any]:
        """Return the value of 8120."""
        progress = self.show(now)
        return {
            "state": progress.state.name.lower(),
            "percent": progress.percent,
            "error": int(progress.error),
            "modelNumber": self.model,
            "version": self.version,
        }


_IDLE: Final = {"state": "idle", "percent": 0, "error": 0, "modelNumber": 0, "version": "0.0.0"}


@dataclass
class SimulatedDevice:
    """Simulated device."""

    number: int
    gateway: int
    model: ModelNumber
    version: str
    fate: UpdateFate = UpdateFate.FINE
    """Course of its next update."""
    verify: int = VERIFY
    """Milliseconds that its updates need for verification."""
    is_off: bool = False
    reports: str | None = None
    """Version in its reports; None if it reports the version that it runs."""
    update: SimulatedUpdate | None = None
    dfu_since: int | None = None
    status: int = 0
    is_mute: bool = False
    started: list[tuple[int, str]] = field(default_factory=list)
    """Job and version of every started update."""
    repeated: list[str] = field(default_factory=list)
    """Updates that the same job started although the device already ran the version."""

    def settle(self, now: int) -> None:
        """Apply what has happened until now: a finished restart, or the end of DFU mode."""
        update = self.update
        if update is not None and update.restart is not None and now >= update.restart + RESTART:
            self._finish_restart(update)
        if self.dfu_since is not None and now >= self.dfu_since + IN_DFU and not self.is_served(now):
            self.dfu_since = None

    def _finish_restart(self, update: SimulatedUpdate) -> None:
        if update.fate is UpdateFate.ROLLED_BACK or (
            update.version == self.version and self.dfu_since is None
        ):
            return
        if update.fate is UpdateFate.WRONG_VERSION:
            self.version, self.dfu_since = "0.0.9", None
            return
        self.version, self.dfu_since = update.version, None
        self.status = 3 if update.fate is UpdateFate.SICK else 0
        self.is_mute = update.fate is UpdateFate.MUTE

    def is_served(self, now: int) -> bool:
        return self.update is not None and not self.update.is_over(now)

    def is_away(self, now: int) -> bool:
        """Return whether the device is unreachable in the mesh."""
        update = self.update
        has_restart = update is not None and update.restart is not None
        is_restarting = has_restart and update.restart <= now < update.restart + RESTART  # type: ignore[union-attr,operator] # checked in the line above
        return self.is_off or self.dfu_since is not None or bool(is_restarting)

    def begin(self, value: dict[str, Any], now: int, *, stage: bool, job: int) -> Status:
        """Start an update."""
        self.settle(now)
        if self.is_served(now):
            return Status.BUSY
        if self.version == value["version"] and (job, self.version) in self.started:
            self.repeated.append(f"{mac_from_int(self.number)} at {now}")
        self.started.append((job, value["version"]))
        started_at = now + SLOW_START if self.fate is UpdateFate.SLOW else now
        self.update = SimulatedUpdate(
            value["modelNumber"], value["version"], stage, started_at, self.fate, self.verify
        )
        return Status.OK

    def control(self, action: int, now: int) -> Status:
        """Apply or abort."""
        update = self.update
        if update is None or update.is_over(now):
            return Status.FAILED
        state = update.show(now).state
        if action:
            if state is not UpdateState.STAGED:
                return Status.BUSY
            update.applied = now
        elif state is UpdateState.APPLYING:
            return Status.BUSY
        else:
            update.aborted = now
        return Status.OK

    @property
    def advertised(self) -> Mac:
        mac = mac_from_int(self.number)
        return mac if is_nrf51(self.model) else to_dfu_mac(mac)

    def raw_version(self) -> str:
        """Return the value of 8001 in hex digits."""
        return bytes(map(int, self.version.split("."))).hex()


StatusAndValue = tuple[int, Any]
CommandHook = Callable[[str, Callable[[], StatusAndValue]], StatusAndValue]
"""Replaces the response of a gateway to a command, given its name and the regular handler."""


@dataclass
class SimulatedGateway:
    """Simulated gateway."""

    number: int
    devices: dict[int, SimulatedDevice]
    """All devices of the simulation; the gateway reaches only its own."""
    is_connected: bool = True
    forgets: bool = False
    """Whether it reports idle as soon as an update has ended."""
    batch: list[tuple[SimulatedDevice, SimulatedUpdate]] = field(default_factory=list)
    """Devices and updates of its last broadcast."""
    image: dict[str, Any] = field(default_factory=dict)
    served: tuple[SimulatedDevice, SimulatedUpdate] | None = None
    """Device and update of its last Nordic DFU."""
    command_hook: CommandHook = lambda _, handle: handle()
    _job: int = 0
    """Job of the request that is being handled."""

    def handle(self, request: OutboxRequest, now: int) -> StatusAndValue:
        """Handle a request and return status and value."""
        for device in self.devices.values():
            device.settle(now)
        if request.target == self.number:
            self._job = request.job
            return self.command_hook(
                request.identifier, lambda: self._handle_own(request.identifier, request.value, now)
            )
        device = self.devices[request.target]
        if device.gateway != self.number:
            return Status.UNREACHABLE, None
        if device.is_away(now):
            return Status.TIMEOUT, None
        return self._handle_device(device, request, now)

    def _handle_device(self, device: SimulatedDevice, request: OutboxRequest, now: int) -> StatusAndValue:
        match request.identifier:
            case "8001":
                return Status.OK, device.raw_version()
            case "start-firmware-update":
                stage = bool(request.value["type"])
                return device.begin(request.value, now, stage=stage, job=request.job), None
            case "firmware-update-state":
                return Status.OK, _IDLE if device.update is None else device.update.value(now)
            case "firmware-update-control":
                return device.control(request.value["action"], now), None
            case "device-mode":
                return self._enter_dfu(device, now)
        raise AssertionError(request)

    def _handle_own(self, identifier: str, value: Any, now: int) -> StatusAndValue:  # noqa: PLR0911 # one return per command
        match identifier:
            case "start-firmware-broadcast":
                return self._start_broadcast(value, now)
            case "firmware-broadcast-state":
                return Status.OK, self._read_broadcast_state(now)
            case "firmware-broadcast-control":
                return self._control_broadcast(value["action"], now)
            case "legacy-device-mode-switch":
                device = self.devices[int(value["mac"], 16)]
                if device.gateway != self.number or device.is_away(now):
                    return Status.UNREACHABLE, None
                return self._enter_dfu(device, now)
            case "start-nordic-dfu":
                return self._start_nordic_dfu(value, now)
            case "nordic-dfu-state":
                return Status.OK, self._read_nordic_state(now)
        raise AssertionError(identifier)

    def _enter_dfu(self, device: SimulatedDevice, now: int) -> StatusAndValue:
        if device.is_served(now):
            return Status.BUSY, None
        device.dfu_since = now
        return Status.OK, None

    def _start_broadcast(self, value: dict[str, Any], now: int) -> StatusAndValue:
        if any(not update.is_over(now) for _, update in self.batch):
            return Status.BUSY, None
        targets = [self.devices[int(mac, 16)] for mac in value["targets"]]
        reachable = [each for each in targets if each.gateway == self.number and not each.is_away(now)]
        if not reachable:
            return Status.INVALID_VALUE, None
        free = [each for each in reachable if not each.is_served(now)]
        if not free:
            return Status.BUSY, None
        for device in free:
            device.begin(value, now, stage=bool(value["type"]), job=self._job)
        self.batch = [(device, device.update) for device in free if device.update is not None]
        self.image = {"modelNumber": value["modelNumber"], "version": value["version"]}
        return Status.OK, None

    def _read_broadcast_state(self, now: int) -> dict[str, Any]:
        if not self.batch or (self.forgets and all(update.is_over(now) for _, update in self.batch)):
            return _IDLE | {"done": 0, "total": 0}
        progress = [update.show(now) for _, update in self.batch]
        open_updates = [each for each in progress if each.state not in _ENDED_STATES]
        done = sum(each.state in (UpdateState.DONE, UpdateState.IDLE) for each in progress)
        if open_updates:
            reported = min(open_updates, key=lambda each: each.state)
        elif done:
            reported = ShownState(UpdateState.DONE, 100, 0)
        else:
            reported = progress[0]
        state = {
            "state": reported.state.name.lower(),
            "percent": reported.percent,
            "error": int(reported.error),
        }
        return {**state, **self.image, "done": done, "total": len(progress)}

    def _control_broadcast(self, action: int, now: int) -> StatusAndValue:
        open_updates = [(device, update) for device, update in self.batch if not update.is_over(now)]
        if not open_updates:
            return Status.FAILED, None
        if action and not any(update.show(now).state is UpdateState.STAGED for _, update in open_updates):
            return Status.BUSY, None
        if not action and all(update.show(now).state is UpdateState.APPLYING for _, update in open_updates):
            return Status.BUSY, None
        for device, update in open_updates:
            if device.update is update and not device.is_off:
                device.control(action, now)
        return Status.OK, None

    def _start_nordic_dfu(self, value: dict[str, Any], now: int) -> StatusAndValue:
        if self.served is not None and not self.served[1].is_over(now):
            return Status.BUSY, None
        for device in self.devices.values():
            is_waiting = device.gateway == self.number and device.dfu_since is not None and not device.is_off
            if is_waiting and device.advertised == value["mac"]:
                device.begin(value, now, stage=False, job=self._job)
                if device.update is not None:
                    self.served = device, device.update
                return Status.OK, None
        return Status.UNREACHABLE, None

    def _read_nordic_state(self, now: int) -> dict[str, Any]:
        if self.served is None or (self.forgets and self.served[1].is_over(now)):
            return _IDLE | {"mac": "000000000000"}
        device, update = self.served
        return update.value(now) | {"mac": device.advertised}
