"""Devices and gateways as the air shows them: what they are told, and what they answer, on plain time."""

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
"""After which a device leaves DFU mode by itself."""


_OVER: Final = frozenset({UpdateState.IDLE, UpdateState.DONE, UpdateState.FAILED})


class UpdateFate(StrEnum):
    """How an update goes."""

    FINE = "fine"
    NO_IMAGE = "no image"
    BATTERY = "battery"
    WRONG_MODEL = "wrong model"
    LOST = "lost"
    STUCK = "stuck"
    BAD_HASH = "bad hash"
    ROLLED_BACK = "rolled back"
    WRONG_VERSION = "wrong version"
    """It says that it is done, and runs something else."""
    FORGETFUL = "forgetful"
    """After the restart the device knows of no update."""
    SICK = "sick"
    """It comes back with a bad status."""
    MUTE = "mute"
    """It comes back and sends no heartbeats."""
    SLOW = "slow"
    """It accepts the start, and is idle for a while before it begins."""


_ERRORS: Final = {
    UpdateFate.BATTERY: (0, UpdateErrorCode.BATTERY),
    UpdateFate.WRONG_MODEL: (0, UpdateErrorCode.WRONG_MODEL),
    UpdateFate.NO_IMAGE: (FETCH, UpdateErrorCode.NO_IMAGE),
    UpdateFate.LOST: (FETCH + TRANSFER // 2, UpdateErrorCode.TRANSFER_LOST),
    UpdateFate.BAD_HASH: (FETCH + TRANSFER + VERIFY, UpdateErrorCode.BAD_HASH),
}
"""When it fails, and with which error."""


class ShownState(NamedTuple):
    """What 8120 says."""

    state: UpdateState
    percent: int
    error: int


@dataclass
class SimulatedUpdate:
    """One update of one device, from its first second on."""

    model: int
    version: str
    stage: bool
    began: int
    fate: UpdateFate
    verify: int = VERIFY
    """Milliseconds that the device takes to look at the image when it has it."""
    applied: int | None = None
    aborted: int | None = None

    @property
    def restart(self) -> int | None:
        """When the device begins to restart, if it does."""
        if self.aborted is not None or self.fate in _ERRORS or self.fate is UpdateFate.STUCK:
            return None
        return self.applied if self.stage else self.began + FETCH + TRANSFER + self.verify

    def show(self, now: int) -> ShownState:  # noqa: PLR0911 # one for each
        """How far it is."""
        done = self._percent(now)
        if self.aborted is None and now < self.began:
            return ShownState(UpdateState.IDLE, 0, 0)
        if self.aborted is not None:
            return ShownState(UpdateState.FAILED, self._percent(self.aborted), UpdateErrorCode.ABORTED)
        if self.fate in _ERRORS:
            after, error = _ERRORS[self.fate]
            if now >= self.began + after:
                return ShownState(UpdateState.FAILED, self._percent(self.began + after), error)
        if self.restart is not None and now >= self.restart:
            return self._after(now - self.restart)
        if now < self.began + FETCH:
            return ShownState(UpdateState.FETCHING, 0, 0)
        if self.fate is UpdateFate.STUCK or now < self.began + FETCH + TRANSFER:
            return ShownState(
                UpdateState.TRANSFERRING, min(done, 40 if self.fate is UpdateFate.STUCK else 99), 0
            )
        if now < self.began + FETCH + TRANSFER + self.verify:
            return ShownState(UpdateState.VERIFYING, 100, 0)
        return ShownState(UpdateState.STAGED, 100, 0)

    def _after(self, since: int) -> ShownState:
        if since < RESTART:
            return ShownState(UpdateState.APPLYING, 100, 0)
        if self.fate is UpdateFate.ROLLED_BACK:
            return ShownState(UpdateState.FAILED, 100, UpdateErrorCode.ROLLED_BACK)
        if self.fate is UpdateFate.FORGETFUL:
            return ShownState(UpdateState.IDLE, 0, 0)
        return ShownState(UpdateState.DONE, 100, 0)

    def _percent(self, now: int) -> int:
        return min(max(100 * (now - self.began - FETCH) // TRANSFER, 0), 100)

    def is_over(self, now: int) -> bool:
        """Whether the device would begin another."""
        return self.show(now).state in _OVER

    def value(self, now: int) -> dict[str, Any]:
        """What 8120 holds."""
        shown = self.show(now)
        return {
            "state": shown.state.name.lower(),
            "percent": shown.percent,
            "error": int(shown.error),
            "modelNumber": self.model,
            "version": self.version,
        }


_IDLE: Final = {"state": "idle", "percent": 0, "error": 0, "modelNumber": 0, "version": "0.0.0"}


@dataclass
class SimulatedDevice:
    """A device: what it runs, and what it does."""

    number: int
    gateway: int
    model: ModelNumber
    version: str
    fate: UpdateFate = UpdateFate.FINE
    """Of its next update."""
    verify: int = VERIFY
    """Of its updates."""
    is_off: bool = False
    reports: str | None = None
    """The version that its reports name; None: the one that it runs."""
    update: SimulatedUpdate | None = None
    dfu_since: int | None = None
    status: int = 0
    is_mute: bool = False
    begun: list[tuple[int, str]] = field(default_factory=list)
    """Every update that it has begun: for which job, and to which version."""
    twice: list[str] = field(default_factory=list)
    """Updates that it has begun although it ran that version already, by the same job."""

    def settle(self, now: int) -> None:
        """Let time have passed."""
        update = self.update
        if update is not None and update.restart is not None and now >= update.restart + RESTART:
            self._come_back(update)
        if self.dfu_since is not None and now >= self.dfu_since + IN_DFU and not self.is_served(now):
            self.dfu_since = None

    def _come_back(self, update: SimulatedUpdate) -> None:
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
        """Whether it hears and says nothing in the mesh."""
        update = self.update
        restarts = update is not None and update.restart is not None
        away = restarts and update.restart <= now < update.restart + RESTART  # type: ignore[union-attr,operator] # as above
        return self.is_off or self.dfu_since is not None or bool(away)

    def begin(self, value: dict[str, Any], now: int, *, stage: bool, job: int) -> Status:
        """Begin an update."""
        self.settle(now)
        if self.is_served(now):
            return Status.BUSY
        if self.version == value["version"] and (job, self.version) in self.begun:
            self.twice.append(f"{mac_from_int(self.number)} at {now}")
        self.begun.append((job, value["version"]))
        began = now + SLOW_START if self.fate is UpdateFate.SLOW else now
        self.update = SimulatedUpdate(
            value["modelNumber"], value["version"], stage, began, self.fate, self.verify
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
        """What 8001 holds, in hex digits."""
        return bytes(map(int, self.version.split("."))).hex()


Answer = tuple[int, Any]
CommandHook = Callable[[str, Callable[[], Answer]], Answer]
"""How a gateway answers a command, by its name and what it does by itself."""


@dataclass
class SimulatedGateway:
    """A gateway, and what it does for all its devices."""

    number: int
    devices: dict[int, SimulatedDevice]
    """All of the world; it reaches its own."""
    is_connected: bool = True
    forgets: bool = False
    """Whether it is idle again as soon as all is done."""
    batch: list[tuple[SimulatedDevice, SimulatedUpdate]] = field(default_factory=list)
    """Those of its last broadcast."""
    image: dict[str, Any] = field(default_factory=dict)
    served: tuple[SimulatedDevice, SimulatedUpdate] | None = None
    """By its last Nordic DFU."""
    command_hook: CommandHook = lambda _, obey: obey()
    _job: int = 0
    """Of which it has just heard."""

    def answer(self, letter: OutboxRequest, now: int) -> Answer:
        """Do what a letter says."""
        for device in self.devices.values():
            device.settle(now)
        if letter.target == self.number:
            self._job = letter.job
            return self.command_hook(
                letter.identifier, lambda: self._own(letter.identifier, letter.value, now)
            )
        device = self.devices[letter.target]
        if device.gateway != self.number:
            return Status.UNREACHABLE, None
        if device.is_away(now):
            return Status.TIMEOUT, None
        return self._device(device, letter, now)

    def _device(self, device: SimulatedDevice, letter: OutboxRequest, now: int) -> Answer:
        match letter.identifier:
            case "8001":
                return Status.OK, device.raw_version()
            case "start-firmware-update":
                stage = bool(letter.value["type"])
                return device.begin(letter.value, now, stage=stage, job=letter.job), None
            case "firmware-update-state":
                return Status.OK, _IDLE if device.update is None else device.update.value(now)
            case "firmware-update-control":
                return device.control(letter.value["action"], now), None
            case "device-mode":
                return self._enter_dfu(device, now)
        raise AssertionError(letter)

    def _own(self, identifier: str, value: Any, now: int) -> Answer:  # noqa: PLR0911 # one for each
        match identifier:
            case "start-firmware-broadcast":
                return self._broadcast(value, now)
            case "firmware-broadcast-state":
                return Status.OK, self._broadcast_state(now)
            case "firmware-broadcast-control":
                return self._control(value["action"], now)
            case "legacy-device-mode-switch":
                device = self.devices[int(value["mac"], 16)]
                if device.gateway != self.number or device.is_away(now):
                    return Status.UNREACHABLE, None
                return self._enter_dfu(device, now)
            case "start-nordic-dfu":
                return self._nordic(value, now)
            case "nordic-dfu-state":
                return Status.OK, self._nordic_state(now)
        raise AssertionError(identifier)

    def _enter_dfu(self, device: SimulatedDevice, now: int) -> Answer:
        if device.is_served(now):
            return Status.BUSY, None
        device.dfu_since = now
        return Status.OK, None

    def _broadcast(self, value: dict[str, Any], now: int) -> Answer:
        if any(not update.is_over(now) for _, update in self.batch):
            return Status.BUSY, None
        named = [self.devices[int(mac, 16)] for mac in value["targets"]]
        there = [each for each in named if each.gateway == self.number and not each.is_away(now)]
        if not there:
            return Status.INVALID_VALUE, None
        free = [each for each in there if not each.is_served(now)]
        if not free:
            return Status.BUSY, None
        for device in free:
            device.begin(value, now, stage=bool(value["type"]), job=self._job)
        self.batch = [(device, device.update) for device in free if device.update is not None]
        self.image = {"modelNumber": value["modelNumber"], "version": value["version"]}
        return Status.OK, None

    def _broadcast_state(self, now: int) -> dict[str, Any]:
        if not self.batch or (self.forgets and all(update.is_over(now) for _, update in self.batch)):
            return _IDLE | {"done": 0, "total": 0}
        shown = [update.show(now) for _, update in self.batch]
        open_ = [each for each in shown if each.state not in _OVER]
        done = sum(each.state in (UpdateState.DONE, UpdateState.IDLE) for each in shown)
        if open_:
            told = min(open_, key=lambda each: each.state)
        elif done:
            told = ShownState(UpdateState.DONE, 100, 0)
        else:
            told = shown[0]
        state = {"state": told.state.name.lower(), "percent": told.percent, "error": int(told.error)}
        return {**state, **self.image, "done": done, "total": len(shown)}

    def _control(self, action: int, now: int) -> Answer:
        open_ = [(device, update) for device, update in self.batch if not update.is_over(now)]
        if not open_:
            return Status.FAILED, None
        if action and not any(update.show(now).state is UpdateState.STAGED for _, update in open_):
            return Status.BUSY, None
        if not action and all(update.show(now).state is UpdateState.APPLYING for _, update in open_):
            return Status.BUSY, None
        for device, update in open_:
            if device.update is update and not device.is_off:
                device.control(action, now)
        return Status.OK, None

    def _nordic(self, value: dict[str, Any], now: int) -> Answer:
        if self.served is not None and not self.served[1].is_over(now):
            return Status.BUSY, None
        for device in self.devices.values():
            waits = device.gateway == self.number and device.dfu_since is not None and not device.is_off
            if waits and device.advertised == value["mac"]:
                device.begin(value, now, stage=False, job=self._job)
                if device.update is not None:
                    self.served = device, device.update
                return Status.OK, None
        return Status.UNREACHABLE, None

    def _nordic_state(self, now: int) -> dict[str, Any]:
        if self.served is None or (self.forgets and self.served[1].is_over(now)):
            return _IDLE | {"mac": "000000000000"}
        device, update = self.served
        return update.value(now) | {"mac": device.advertised}
