"""Topics of the integration with Home Assistant (homeassistant-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors.protocol import MalformedMac
from meshfleet.protocol.ids import parse_mac

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

_BIRTH_TOPIC: Final = "homeassistant/status"
"""Topic on which Home Assistant says that it has started, whatever its discovery prefix is."""


class Command(NamedTuple):
    """Device and name of the value or action that a command topic names."""

    mac: Mac
    name: str


class IntegrationTopics(NamedTuple):
    """Topics below the discovery prefix of Home Assistant and below the topic of this service."""

    discovery_prefix: str
    root: str

    @property
    def status(self) -> str:
        """Topic of the state of the service: `online` or `offline`."""
        return f"{self.root}/status"

    @property
    def sync(self) -> str:
        """Topic of a message to this service itself, which follows all retained messages."""
        return f"{self.root}/sync"

    @property
    def births(self) -> tuple[str, ...]:
        """Topics on which Home Assistant may say that it has started."""
        return tuple(dict.fromkeys((_BIRTH_TOPIC, f"{self.discovery_prefix}/status")))

    @property
    def command_filter(self) -> str:
        """Filter of the commands to all devices."""
        return f"{self.root}/+/set/+"

    @property
    def published_filters(self) -> tuple[str, ...]:
        """Filters of all retained messages that the integration publishes, among those of other programs."""
        return (
            f"{self.discovery_prefix}/device/+/config",
            f"{self.discovery_prefix}/+/+/+/config",
            f"{self.root}/+/availability",
            f"{self.root}/+/state",
        )

    def availability(self, mac: Mac) -> str:
        """Return the topic on which a device is `online` or `offline`."""
        return f"{self.root}/{mac}/availability"

    def state(self, mac: Mac) -> str:
        """Return the topic of the newest values of a device."""
        return f"{self.root}/{mac}/state"

    def event(self, mac: Mac, name: str) -> str:
        """Return the topic of an event of a device."""
        return f"{self.root}/{mac}/event/{name}"

    def command(self, mac: Mac, name: str) -> str:
        """Return the topic of commands that write a property of a device."""
        return f"{self.root}/{mac}/set/{name}"

    def device_config(self, mac: Mac) -> str:
        """Return the topic of the discovery message of a device."""
        return f"{self.discovery_prefix}/device/{format_node_id(mac)}/config"

    def entity_config(self, mac: Mac, platform: str, object_id: str) -> str:
        """Return the topic of the discovery message of an entity."""
        return f"{self.discovery_prefix}/{platform}/{format_node_id(mac)}/{object_id}/config"

    def parse_command(self, topic: str) -> Command | None:
        """Return the device and name of a command; None if it is not a topic of commands."""
        match topic.removeprefix(f"{self.root}/").split("/"):
            case [mac, "set", name] if topic.startswith(f"{self.root}/") and (parsed := _find_mac(mac)):
                return Command(parsed, name)
        return None

    def find_published_device(self, topic: str) -> Mac | None:
        """Return the device of a retained message that the integration may have published; None otherwise."""
        if topic.startswith(f"{self.discovery_prefix}/"):
            match topic.removeprefix(f"{self.discovery_prefix}/").split("/"):
                case ["device", node, "config"] | [_, node, _, "config"] if node.startswith(_NODE_START):
                    return _find_mac(node.removeprefix(_NODE_START))
        elif topic.startswith(f"{self.root}/"):
            match topic.removeprefix(f"{self.root}/").split("/"):
                case [mac, "availability" | "state"]:
                    return _find_mac(mac)
        return None

    def find_object_id(self, topic: str) -> str | None:
        """Return the object id in the topic of the discovery message of an entity; None for other topics."""
        match topic.removeprefix(f"{self.discovery_prefix}/").split("/"):
            case [_, node, object_id, "config"] if node.startswith(_NODE_START):
                return object_id
        return None


_NODE_START: Final = "meshfleet_"


def format_node_id(mac: Mac) -> str:
    """Return the id of a device in Home Assistant."""
    return f"{_NODE_START}{mac}"


def _find_mac(text: str) -> Mac | None:
    try:
        return parse_mac(text)
    except MalformedMac:
        return None
