"""Decides which messages Home Assistant needs next, without I/O (homeassistant-6, homeassistant-7).

The plan holds which messages are published, and a queue of devices whose messages are due. A message is built
from the newest values only when it is taken from the queue, so no outdated values wait while the broker is
away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.ids import mac_to_int
from meshfleet.service.homeassistant.discovery import (
    build_device_message,
    build_messages,
    parse_entity_platforms,
)
from meshfleet.service.homeassistant.entities import DeviceDescription, list_entities
from meshfleet.service.homeassistant.fleet import FleetDevice
from meshfleet.service.homeassistant.state import (
    BelievedValue,
    ShownValue,
    apply_rows,
    build_state,
    parse_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.db.samples.sample import SampleRow
    from meshfleet.service.homeassistant.discovery import DiscoveryOptions
    from meshfleet.service.homeassistant.state import NewEvent, ShownIdentifiers

ONLINE: Final = b"online"
OFFLINE: Final = b"offline"

MOVE_INTERVAL_MS: Final = 3_600_000
"""Minimum milliseconds between two discovery messages whose only cause is that a device changed gateways."""


class _PublishedDevice(Struct):
    """Retained messages about a device that are at the broker, some of them from an earlier process."""

    topics: set[str] = field(default_factory=set)
    """Topics of all retained messages of the device."""
    components: dict[str, str] = field(default_factory=dict)
    """Platforms of the entities in form `device`, by object id."""
    identifiers: set[str] = field(default_factory=set)
    """Identifiers with entities at the broker: the device must have reported them to an earlier process."""
    state: dict[str, ShownValue] = field(default_factory=dict)
    """Values of the last state message of an earlier process, by name."""


class _ShownDevice(Struct):
    """Device that Home Assistant shows, with the values to publish."""

    newest: FleetDevice
    """Device as loaded from the registry last."""
    description: DeviceDescription
    """Description that is published, or due to be published."""
    values: dict[str, BelievedValue] = field(default_factory=dict)
    """Newest value of each identifier."""
    is_ready: bool = False
    """Whether stored values were loaded, so that the device can be published."""
    described_at: int = 0
    """Unix time in milliseconds of the last discovery message with another gateway."""
    last_state: bytes = b""
    """Payload of the last state message; empty if the next one must be published even if it is equal."""


class _Due(NamedTuple):
    """Entry of the queue: messages that are due for a device."""

    step: str
    """Kind of the messages: `_STATE`, `_STATUS`, `_DISCOVERY` or `_REMOVAL`."""
    number: int
    """MAC of the device in integer form; 0 for the status of the service."""


_STATE: Final = "state"
_STATUS: Final = "status"
_DISCOVERY: Final = "discovery"
_REMOVAL: Final = "removal"


class PublicationPlan:
    """Holds which messages about devices are published, and queues the messages that are due.

    Methods take a device as a `number`, the MAC in integer form.
    """

    def __init__(self, options: DiscoveryOptions, shown: ShownIdentifiers, *, with_commands: bool) -> None:
        self._options = options
        self._topics = options.topics
        self._shown = shown
        self._with_commands = with_commands
        self._devices: dict[int, _ShownDevice] = {}
        self._published: dict[int, _PublishedDevice] = {}
        self._queue: dict[_Due, None] = {}
        self._dirty: dict[int, None] = {}
        """Devices whose values have changed since their last state message."""

    @property
    def pending_count(self) -> int:
        """Number of devices with messages that are due."""
        return len({each.number for each in self._queue} | self._dirty.keys())

    @property
    def has_queue(self) -> bool:
        """Whether rate-limited messages are due: all messages except states with new values."""
        return bool(self._queue)

    @property
    def has_changes(self) -> bool:
        """Whether states with new values wait for the next call of `take_states`."""
        return bool(self._dirty)

    def list_identifiers(self, number: int) -> set[str]:
        """Return the identifiers that a device has reported."""
        device = self._devices.get(number)
        return set() if device is None else self._collect_identifiers(number, device)

    def find_device(self, number: int) -> DeviceDescription | None:
        """Return the description of a device that Home Assistant shows; None for all others."""
        device = self._devices.get(number)
        return None if device is None else device.description

    # What is at the broker

    def record_published(self, topic: str, payload: bytes) -> None:
        """Record a retained message at the broker, if an earlier process of the service has published it."""
        mac = self._topics.find_published_device(topic)
        if mac is None or not payload:
            return
        components = parse_entity_platforms(payload, self._topics) if self._is_discovery(topic) else {}
        if components is None:
            return
        published = self._get_published(mac_to_int(mac))
        published.topics.add(topic)
        published.components |= components
        objects = {*components, self._topics.find_object_id(topic)}
        published.identifiers |= {each.partition("-")[0] for each in objects if each}
        if topic == self._topics.state(mac):
            published.state = parse_state(payload)

    def republish_all(self) -> None:
        """Queue all messages of all devices: availability and states first, then discovery.

        Also queue the removal of published devices that are not shown any more.
        """
        self._queue.clear()
        self._dirty.clear()
        for step in (_STATE, _STATUS, _DISCOVERY):
            numbers = [number for number, each in self._devices.items() if each.is_ready]
            self._queue |= dict.fromkeys(_Due(step, each) for each in (numbers if step != _STATUS else (0,)))
        self._queue_removals()

    def remove_all(self) -> None:
        """Queue the removal of all devices from Home Assistant."""
        self._devices.clear()
        self._queue.clear()
        self._dirty.clear()
        self._queue_removals()

    def _queue_removals(self) -> None:
        """Queue the removal of all published devices that are not shown any more."""
        for number in self._published.keys() - self._devices.keys():
            self._queue[_Due(_REMOVAL, number)] = None

    # Changes

    def update_fleet(self, fleet: dict[int, FleetDevice], now: int) -> list[int]:
        """Replace the shown devices by the devices of the registry, and queue the messages that this changes.

        Return the added devices. An added device is published after `add_history` was called for that device.
        """
        added = [number for number in fleet if number not in self._devices]
        for number in self._devices.keys() - fleet.keys():
            del self._devices[number]
            self._dirty.pop(number, None)
            self._queue[_Due(_REMOVAL, number)] = None
        for number, newest in fleet.items():
            if number in self._devices:
                self._update_device(number, newest, now)
        for number in added:
            self._queue.pop(_Due(_REMOVAL, number), None)
            newest = fleet[number]
            self._devices[number] = _ShownDevice(newest, newest.description, described_at=now)
        return added

    def add_history(self, number: int, rows: Iterable[SampleRow]) -> None:
        """Apply the stored samples of an added device, and queue the messages of that device."""
        device = self._devices.get(number)
        if device is not None:
            apply_rows(device.values, rows, self._shown)
            device.is_ready = True
            self._queue[_Due(_STATE, number)] = self._queue[_Due(_DISCOVERY, number)] = None

    def _update_device(self, number: int, newest: FleetDevice, now: int) -> None:
        """Replace a shown device by its newest data from the registry, and queue changed messages."""
        device = self._devices[number]
        before, device.newest = device.newest, newest
        if before.figures.connected != newest.figures.connected:
            self._queue[_Due(_STATE, number)] = None
        elif before.figures != newest.figures:
            self._dirty[number] = None
        wanted = newest.description
        if wanted.via != device.description.via:
            if now - device.described_at < MOVE_INTERVAL_MS and wanted.via is not None:
                wanted = replace(wanted, via=device.description.via)
            else:
                device.described_at = now
        if wanted != device.description:
            self._dirty[number] = None  # the state contains the firmware version
            device.description = wanted
            self._queue[_Due(_DISCOVERY, number)] = None

    def apply_rows(self, number: int, rows: Iterable[SampleRow]) -> list[NewEvent]:
        """Apply samples to the values of a device. Return the events among the samples of a shown device."""
        device = self._devices.get(number)
        if device is None:
            return []
        known_before = self._collect_identifiers(number, device) if device.is_ready else None
        events = apply_rows(device.values, rows, self._shown)
        self._dirty[number] = None
        if known_before is not None and device.values.keys() - known_before:
            # The state first: Home Assistant reads the new value from it as soon as it has the entity.
            self._queue[_Due(_STATE, number)] = self._queue[_Due(_DISCOVERY, number)] = None
        return events

    def set_value(self, number: int, identifier: str, value: BelievedValue) -> None:
        """Set the value of an identifier, after a device has confirmed that the value was written."""
        device = self._devices.get(number)
        if device is not None:
            device.values[identifier] = value
            self._dirty[number] = None

    def repeat_state(self, number: int) -> None:
        """Publish the state of a device again, although it has not changed."""
        if number in self._devices:
            self._devices[number].last_state = b""
            self._dirty[number] = None

    # Messages

    def take_states(self) -> list[Publish]:
        """Build the state messages of all devices whose values changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        waiting = {each.number for each in self._queue if each.step == _STATE}
        return [each for number in dirty if number not in waiting for each in self._build_state(number)]

    def take_queued(self, limit: int) -> list[Publish]:
        """Build messages for the first entries of the queue, until there are `limit` messages or more."""
        messages: list[Publish] = []
        while self._queue and len(messages) < limit:
            due = next(iter(self._queue))
            del self._queue[due]
            messages += self._build_due(due)
        return messages

    def _build_due(self, due: _Due) -> Iterator[Publish]:
        """Yield the messages of an entry of the queue."""
        if due.step == _STATUS:
            yield _build_retained(self._topics.status, ONLINE)
        elif due.step == _REMOVAL:
            yield from self._build_removal(due.number)
        elif (device := self._devices.get(due.number)) is not None and device.is_ready:
            if due.step == _STATE:
                yield self._build_availability(due.number, device)
                device.last_state = b""
                yield from self._build_state(due.number)
            else:
                yield from self._build_discovery(due.number, device)

    def _build_availability(self, number: int, device: _ShownDevice) -> Publish:
        topic = self._topics.availability(device.description.mac)
        self._get_published(number).topics.add(topic)
        return _build_retained(topic, ONLINE if device.newest.figures.connected else OFFLINE)

    def _build_state(self, number: int) -> Iterator[Publish]:
        """Yield the state message of a device, unless it equals the last one."""
        device = self._devices.get(number)
        if device is None or not device.is_ready:
            return
        published = self._get_published(number)
        names = self._shown.list_names(self._collect_identifiers(number, device))
        earlier = {name: published.state.get(name) for name in names}
        firmware = device.description.firmware
        state = build_state(device.values, device.newest.figures, firmware, self._shown, earlier=earlier)
        if state != device.last_state:
            device.last_state = state
            topic = self._topics.state(device.description.mac)
            published.topics.add(topic)
            yield _build_retained(topic, state)

    def _build_discovery(self, number: int, device: _ShownDevice) -> Iterator[Publish]:
        """Yield messages that remove former entities of a device, then its discovery messages."""
        entities = list_entities(
            device.description,
            self._collect_identifiers(number, device),
            self._shown.catalogue,
            self._topics,
            with_commands=self._with_commands,
        )
        messages = build_messages(device.description, entities, self._options)
        published = self._get_published(number)
        is_device_form = self._options.form == "device"
        components = {each.object_id: each.platform for each in entities} if is_device_form else {}
        gone = {name: each for name, each in published.components.items() if name not in components}
        if gone and is_device_form:
            removal = build_device_message(device.description, entities, self._options, removed=gone)
            yield _build_retained(*removal)
        wanted = {each.topic for each in messages}
        outdated = {topic for topic in published.topics if self._is_discovery(topic)} - wanted
        yield from (_build_retained(topic, b"") for topic in sorted(outdated))
        published.components = components
        published.topics = published.topics - outdated | wanted
        yield from (_build_retained(*each) for each in messages)

    def _build_removal(self, number: int) -> Iterator[Publish]:
        """Yield empty retained messages, which delete all messages of a device; discovery first."""
        published = self._published.pop(number, _PublishedDevice())
        topics = sorted(published.topics, key=lambda topic: (not self._is_discovery(topic), topic))
        yield from (_build_retained(topic, b"") for topic in topics)

    def _is_discovery(self, topic: str) -> bool:
        return topic.startswith(f"{self._topics.discovery_prefix}/")

    def _collect_identifiers(self, number: int, device: _ShownDevice) -> set[str]:
        """Return the identifiers that a device has reported to this process or an earlier one."""
        return self._get_published(number).identifiers | device.values.keys()

    def _get_published(self, number: int) -> _PublishedDevice:
        """Return the record of the published messages of a device; add an empty one if there is none."""
        return self._published.setdefault(number, _PublishedDevice())


def _build_retained(topic: str, payload: bytes) -> Publish:
    return Publish(topic, payload, 1, retain=True)
